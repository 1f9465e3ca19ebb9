"""Statistics over all workers: two processes with uneven shares of a batch against torch's own norm over the whole batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

from mast_ray.models.convolutions import SharedBatchNorm

SHARES = (slice(0, 3), slice(3, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 3, 5, 2)
    return 2 * torch.randn(shape, generator=generator) + 1, torch.randn(shape, generator=generator)


def one_worker(rank: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    values, wanted = (part[SHARES[rank]] for part in batch())
    norm, values = SharedBatchNorm(3), values.clone().requires_grad_()
    output = norm(values)
    (output * wanted).sum().backward()
    found[rank] = [
        part.detach().numpy().copy() for part in (output, values.grad, norm.running_mean, norm.running_var)
    ]
    dist.destroy_process_group()


def test_two_workers_with_uneven_shares_normalise_as_one_batch(tmp_path):
    whole, wanted = batch()
    norm, whole = nn.BatchNorm2d(3), whole.requires_grad_()
    output = norm(whole)
    (output * wanted).sum().backward()
    with processes.Manager() as manager:
        found = manager.dict()
        processes.spawn(one_worker, (str(tmp_path / "store"), found), nprocs=2)
        parts = [[torch.from_numpy(array) for array in found[rank]] for rank in range(2)]
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), output.detach())
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), whole.grad)
    for part in parts:
        torch.testing.assert_close(part[2], norm.running_mean)
        torch.testing.assert_close(part[3], norm.running_var)


def test_alone_it_is_batch_norm():
    values = batch()[0]
    shared, plain = SharedBatchNorm(3), nn.BatchNorm2d(3)
    assert torch.equal(shared(values), plain(values))
    assert torch.equal(shared.eval()(values), plain.eval()(values))
    assert shared.state_dict().keys() == plain.state_dict().keys()
