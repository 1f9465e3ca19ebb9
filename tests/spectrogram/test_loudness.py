"""What stands out of its background counts, noise does not."""

import pytest
import torch

from mast_ray.spectrogram.loudness import loudness, median_level
from mast_ray.spectrogram.normalisation import Normalisation

NORMALISATION = Normalisation(mean=-5.0, std=2.0)


def test_a_loud_call_makes_a_chunk_loud() -> None:
    noise = torch.rand(2, 1024, 128, generator=torch.Generator().manual_seed(0)).clamp(min=1e-6)
    logmel = (-noise.log()).log() / NORMALISATION.denominator
    logmel[1, 100:300, 40:60] += 3.0
    quiet, loud = loudness(logmel, NORMALISATION).tolist()
    assert quiet < 0.01 and loud == pytest.approx(200 * 20 / (1024 * 128), abs=0.01)


def test_padding_is_no_part_of_the_median() -> None:
    logmel = torch.full((2, 64, 3), NORMALISATION.silence)
    logmel[0, :8] = torch.tensor([1.0, 2.0, 3.0])  # one looked-at frame sounds, seven are padding
    assert median_level(logmel, NORMALISATION.silence).tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
