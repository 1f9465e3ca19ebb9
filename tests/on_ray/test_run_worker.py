"""What a training worker says of what ends it: to the driver what no restart cures, in a line what one does."""

import errno
import logging
from types import SimpleNamespace

import pytest
import torch

from mast_ray.config.errors import DataError

pytest.importorskip("ray.train")
import ray.train.torch

from mast_ray.on_ray import training


@pytest.mark.parametrize(
    ("error", "is_told", "lines"),
    [
        (
            RuntimeError("[gloo] in 3 frames\nConnection reset by peer"),
            False,
            ["training interrupted: Connection reset by peer"],
        ),
        (
            OSError(errno.EIO, "Input/output error"),
            False,
            ["training interrupted: [Errno 5] Input/output error"],
        ),
        (OSError(errno.ENOSPC, "No space left on device"), True, []),
        (DataError("a shard is damaged: prepare again"), True, []),
    ],
)
def test_an_error_of_a_worker_is_a_line_or_told_and_never_a_page(error, is_told, lines, monkeypatch, caplog):
    def loop(worker):
        raise error

    told = []
    monkeypatch.delenv("MAST_DEBUG", raising=False)
    monkeypatch.setattr(logging.getLogger(training.RAYS_PAGES), "level", logging.NOTSET)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(training, "RayWorker", lambda *given: SimpleNamespace(world_size=2))
    heard = SimpleNamespace(ask=lambda: "", tell=told.append)
    settings = {"loop": loop, "heard": heard, "is_dealt": False, "scorer": None}
    with caplog.at_level(logging.INFO), pytest.raises(type(error)):
        training.run_worker(settings)
    logging.getLogger(training.RAYS_PAGES).error("Error in training function:\nTraceback ...")
    assert (bool(told), caplog.messages) == (is_told, lines)
