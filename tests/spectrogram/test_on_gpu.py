"""What must hold on a GPU: the same numbers as on the CPU, and no waiting for the device."""

import numpy as np
import pytest
import torch

from mast_ray.boxes.assignment import assign
from mast_ray.boxes.batch import ChunkBatch, Detections, PaddedBoxes, pad_boxes
from mast_ray.boxes.points import pyramid_levels
from mast_ray.boxes.suppression import suppress
from mast_ray.spectrogram.augmentation import AugmentStrength, augment, draw_augmentation
from mast_ray.spectrogram.logmel import LogMel, logmel_on_device
from mast_ray.spectrogram.normalisation import Normalisation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def random_boxes(num_chunks: int, count: int) -> PaddedBoxes:
    generator = torch.Generator().manual_seed(0)
    low = torch.rand((num_chunks, count, 2), generator=generator) * torch.tensor([900.0, 100.0])
    size = torch.rand((num_chunks, count, 2), generator=generator) * torch.tensor([120.0, 28.0]) + 1
    return pad_boxes(list(torch.cat((low, low + size), dim=-1)))


def test_log_mel_agrees_with_the_cpu_also_when_tf32_is_on() -> None:
    waveform = (np.random.default_rng(0).standard_normal((2, 60_000)) * 0.1).astype(np.float32)
    torch.set_float32_matmul_precision("high")
    found = logmel_on_device(torch.from_numpy(waveform).cuda()).cpu().numpy()
    torch.set_float32_matmul_precision("highest")
    difference = np.abs(found - np.stack([LogMel().frames(row) for row in waveform]))
    assert np.quantile(difference, 0.999) < 1e-3 and difference.max() < 0.03


@pytest.mark.parametrize("name", ["atss", "centre"])
def test_assignment_is_the_same_on_both_devices(name: str) -> None:
    boxes, levels = random_boxes(8, 20), pyramid_levels(4, (8, 4))
    assert torch.equal(
        assign(boxes.to("cuda"), levels, name).box_index.cpu(), assign(boxes, levels, name).box_index
    )


def test_a_training_step_prepares_its_batch_without_waiting_for_the_device() -> None:
    boxes = random_boxes(8, 20).to("cuda")
    raw = torch.randint(0, 255, (8, 1024, 128), dtype=torch.uint8, device="cuda")
    scale, offset = torch.full((8,), 0.1, device="cuda"), torch.full((8,), -15.9, device="cuda")
    bank = torch.randn(4, 1024, 128, device="cuda")
    weight, score = torch.ones(8, device="cuda"), torch.rand(8, boxes.corners.shape[1], device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    normalisation = Normalisation(-6.0, 3.0)
    strength = AugmentStrength(mixup=0.2, cutmix=0.2)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = ChunkBatch(normalisation(raw, scale, offset, "zeros"), boxes, weight)
        draws = draw_augmentation(batch, strength, 0.9, generator, len(bank))
        batch = augment(batch, draws, strength, normalisation, bank)
        for name in ("atss", "centre"):
            assign(batch.boxes, pyramid_levels(4, (8, 4)), name)
        suppress(Detections(boxes.corners, score, boxes.is_object), 0.5, num_steps=16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batch.logmel.isfinite().all()
