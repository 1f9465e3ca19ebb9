"""A committee of detectors that answer from a list."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections
from mast_ray.inference.committee import HEARINGS, Committee, Hearing

SILENCE = -3.0


class WhatIsLoud(nn.Module):
    """Finds the one box that holds whatever is loud."""

    def detect(self, logmel: Tensor, *_: float, end_frames: Tensor | None = None) -> Detections:
        loud = (logmel[0, 0] > 2.5).nonzero()
        corners = torch.cat((loud.amin(0), loud.amax(0) + 1)).float()[None, None]
        return Detections(corners, torch.full((1, 1), 0.8), torch.ones(1, 1, dtype=torch.bool))


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


def test_heard_higher_or_lower_the_edge_is_repeated() -> None:
    ramp = torch.arange(5.0).expand(1, 1, 1, 5)
    assert Hearing(2).heard(ramp, SILENCE).flatten().tolist() == [0, 0, 0, 1, 2]
    assert Hearing(-2).heard(ramp, SILENCE).flatten().tolist() == [2, 3, 4, 4, 4]


def test_pressed_in_time_a_chunk_begins_as_before_and_ends_in_silence() -> None:
    pressed = Hearing(0, 0.5).heard(torch.ones(1, 1, 64, 8), SILENCE)[0, 0]
    assert torch.all(pressed[:32] == 1.0) and torch.all(pressed[32:] == SILENCE)


@pytest.mark.parametrize("hearing", HEARINGS)
def test_a_call_is_found_where_it_is_however_it_is_heard(hearing: Hearing) -> None:
    logmel = torch.zeros(1, 1, 200, 128)
    logmel[..., 40:160, 30:90] = 5.0
    found = WhatIsLoud().detect(hearing.heard(logmel, SILENCE))
    corners = hearing.taken_back(found, 200, 128).corners[0, 0]
    torch.testing.assert_close(corners, torch.tensor([40.0, 30.0, 160.0, 90.0]), atol=1.5, rtol=0.0)


def test_the_end_of_the_sound_is_pressed_with_it() -> None:
    ends: list[Tensor | None] = []

    class Noting(WhatIsLoud):
        def detect(self, logmel: Tensor, *_: float, end_frames: Tensor | None = None) -> Detections:
            ends.append(end_frames)
            return super().detect(logmel)

    logmel = torch.zeros(1, 1, 200, 128)
    logmel[..., 40:100, 30:90] = 5.0
    Committee([Noting()], 6, SILENCE).detect(logmel, end_frames=torch.tensor([100.0]))
    assert [round(float(end), 3) for end in ends if end is not None] == [100, 100, 100, 70, 100, 70]


@pytest.mark.parametrize("num_hearings", [1, 3])
def test_boxes_come_back_to_the_height_they_were_heard_at(num_hearings: int) -> None:
    found = Committee([LoudestBin(0.8)], num_hearings).detect(chunk(60))
    assert found.is_valid.sum() == 1
    torch.testing.assert_close(found.corners[0, 0], torch.tensor([10.0, 59.0, 30.0, 63.0]))
    torch.testing.assert_close(found.score[0, 0], torch.tensor(0.8))


def test_members_share_a_score() -> None:
    found = Committee([LoudestBin(0.9), LoudestBin(0.1)]).detect(chunk(60))
    torch.testing.assert_close(found.score[0, 0], torch.tensor(0.5))


def test_what_leaves_the_band_is_no_detection() -> None:
    found = Committee([LoudestBin(0.9)], 3).detect(chunk(127))
    kept = found.corners[found.is_valid]
    assert (kept[:, 3] > kept[:, 1]).all() and kept[:, 3].max() <= 128


def test_every_member_hears_values_on_the_scale_it_was_trained_on() -> None:
    heard: list[float] = []

    class Noting(WhatIsLoud):
        def detect(self, logmel: Tensor, *_: float, end_frames: Tensor | None = None) -> Detections:
            heard.append(float(logmel.max()))
            return super().detect(logmel)

    logmel = torch.zeros(1, 1, 200, 128)
    logmel[..., 40:100, 30:90] = 5.0
    Committee([Noting(), Noting()], 1, SILENCE, [(1.0, 0.0), (2.0, 1.0)]).detect(logmel)
    assert heard == [5.0, 11.0]


def test_a_member_that_hears_once_counts_as_often_as_the_others() -> None:
    calls: list[int] = []

    class Once(LoudestBin):
        hears_once = True

        def detect(self, logmel: Tensor, *given: float, end_frames: Tensor | None = None) -> Detections:
            calls.append(len(logmel))
            return super().detect(logmel, *given, end_frames=end_frames)

    found = Committee([LoudestBin(0.9), Once(0.3)], 3).detect(chunk(60))
    assert calls == [1]
    torch.testing.assert_close(found.score[0, 0], torch.tensor(0.6))
