"""The median of a recording in every bin, in pieces of any size, hour by hour in long ones."""

import numpy as np
import pytest
import torch

from mast_ray.spectrogram.background import (
    LEVEL_STEP,
    STRETCH_SEGMENTS,
    BackgroundStream,
    LevelCounts,
)
from mast_ray.spectrogram.normalisation import DEEPEST_BELOW_BACKGROUND, Normalisation


def noise(num_segments: int, frames: int = 8) -> torch.Tensor:
    """Segments whose level rises slowly, so that every stretch has another median."""
    generator = torch.Generator().manual_seed(num_segments)
    slope = torch.linspace(-8, -2, num_segments)[:, None, None]
    return torch.randn(num_segments, frames, 128, generator=generator) + slope


def stretches_of(segments: torch.Tensor, piece: int):
    stream, found = BackgroundStream(), []
    for part in segments.split(piece):
        found += stream.push(part)
    return found + stream.finish()


def test_the_median_lies_within_half_a_level_of_the_sorted_one() -> None:
    values = torch.randn(1001, 128, generator=torch.Generator().manual_seed(0)) * 3 - 6
    counts = LevelCounts()
    counts.add(values[:400])
    counts.add(values[400:])
    expected = np.median(values.numpy(), axis=0)
    assert np.abs(counts.median().numpy() - expected).max() <= LEVEL_STEP / 2 + 1e-5


def test_values_beyond_the_levels_count_as_the_outermost() -> None:
    counts = LevelCounts()
    counts.add(torch.tensor([-99.0, 99.0, 99.0])[:, None].expand(3, 128))
    assert counts.median()[0] == pytest.approx(12.0, abs=LEVEL_STEP)


@pytest.mark.parametrize(("num_segments", "borders"), [
    (1, [0]), (703, [0]), (1407, [0]), (1408, [0, 704]), (2111, [0, 704]), (2112, [0, 704, 1408]), (2900, [0, 704, 1408, 2112]),
])  # fmt: skip
@pytest.mark.parametrize("piece", [1, 13, 5000])
def test_a_recording_is_cut_by_the_hour_and_the_last_hour_takes_the_rest(
    num_segments, borders, piece
) -> None:
    segments = noise(num_segments)
    found = stretches_of(segments, piece)
    assert [stretch.first_segment for stretch in found] == borders
    assert sum(stretch.num_segments for stretch in found) == num_segments
    for stretch in found:
        own = segments[stretch.first_segment : stretch.first_segment + stretch.num_segments]
        every_fourth = own[:, ::4].reshape(-1, 128).numpy()
        expected = np.quantile(every_fourth, 0.5, axis=0, method="inverted_cdf")  # the lower of two
        assert np.abs(stretch.background.numpy() - expected).max() <= LEVEL_STEP / 2 + 1e-5
    assert pytest.approx(3600, abs=5) == STRETCH_SEGMENTS * 5.12


def test_frames_that_are_padding_do_not_count() -> None:
    segments = torch.full((2, 512, 128), -5.0)
    segments[1, 100:] = -15.9
    segments[0, :200] = -4.0
    stream = BackgroundStream()
    stream.push(segments, valid_frames=612)
    assert stream.finish()[0].background[0] == pytest.approx(-5.0, abs=LEVEL_STEP)


def test_a_recording_without_segments_has_no_background() -> None:
    assert BackgroundStream().finish() == []


def test_each_half_of_a_chunk_loses_its_own_background_before_it_is_divided() -> None:
    raw = torch.zeros(1, 1024, 128)
    raw[0, 512:] = 3.0
    background = torch.stack((torch.full((128,), -1.0), torch.full((128,), 1.0)))[None]
    out = Normalisation(0.5, 2.0, eps=0.0, background="median")(raw, background=background)
    assert torch.allclose(out[0, 0, :512], torch.full((512, 128), 0.25))  # (0 + 1 - 0.5) / 2
    assert torch.allclose(out[0, 0, 512:], torch.full((512, 128), 0.75))  # (3 - 1 - 0.5) / 2


def test_padding_is_the_same_whatever_the_background() -> None:
    normalisation = Normalisation(0.5, 2.0, background="median")
    raw = torch.full((2, 1024, 128), -15.9)
    out = normalisation(raw, background=torch.stack((torch.full((2, 128), -3.0), torch.full((2, 128), -8.0))))
    assert torch.equal(out, torch.full_like(out, normalisation.silence))
    assert float(out.mean()) * normalisation.denominator + normalisation.mean == pytest.approx(
        -DEEPEST_BELOW_BACKGROUND, abs=1e-4
    )


def test_a_background_that_was_not_asked_for_is_left_alone() -> None:
    raw, plain = torch.randn(1, 1024, 128), Normalisation(0.0, 1.0)
    assert torch.equal(plain(raw, background=torch.ones(1, 2, 128)), plain(raw))
    with pytest.raises(AssertionError, match="without background"):
        Normalisation(0.0, 1.0, background="median")(raw)
