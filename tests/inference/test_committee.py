"""A committee of detectors that answer from a list."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections
from mast_ray.inference.committee import Committee, pitched


class LoudestBin(nn.Module):
    """Finds one box, four bins high, at the loudest bin of a chunk."""

    def __init__(self, score: float) -> None:
        super().__init__()
        self.score = score

    def detect(self, logmel: Tensor, *_: float, end_frames: Tensor | None = None) -> Detections:
        bins = logmel[:, 0].amax(1).argmax(-1).float()
        zero = torch.zeros_like(bins)
        high = (bins + 3).clamp(max=logmel.shape[-1])
        corners = torch.stack((zero + 10, bins - 1, zero + 30, high), -1)[:, None]
        return Detections(
            corners, torch.full((len(logmel), 1), self.score), torch.ones(len(logmel), 1, dtype=torch.bool)
        )


def chunk(loudest_bin: int) -> Tensor:
    logmel = torch.zeros(1, 1, 64, 128)
    logmel[..., 20, loudest_bin] = 5.0
    return logmel


def test_a_pitch_repeats_the_edge() -> None:
    ramp = torch.arange(5.0).expand(1, 1, 1, 5)
    assert pitched(ramp, 2).flatten().tolist() == [0, 0, 0, 1, 2]
    assert pitched(ramp, -2).flatten().tolist() == [2, 3, 4, 4, 4]


@pytest.mark.parametrize("num_pitches", [1, 3, 7])
def test_boxes_come_back_to_the_height_they_were_heard_at(num_pitches: int) -> None:
    found = Committee([LoudestBin(0.8)], num_pitches).detect(chunk(60))
    assert found.is_valid.sum() == 1
    torch.testing.assert_close(found.corners[0, 0], torch.tensor([10.0, 59.0, 30.0, 63.0]))
    torch.testing.assert_close(found.score[0, 0], torch.tensor(0.8))


def test_members_share_a_score() -> None:
    found = Committee([LoudestBin(0.9), LoudestBin(0.1)]).detect(chunk(60))
    torch.testing.assert_close(found.score[0, 0], torch.tensor(0.5))


def test_what_leaves_the_band_is_no_detection() -> None:
    found = Committee([LoudestBin(0.9)], 7).detect(chunk(127))
    kept = found.corners[found.is_valid]
    assert (kept[:, 3] > kept[:, 1]).all() and kept[:, 3].max() <= 128
