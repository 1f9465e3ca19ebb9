"""Noises: they have the spectrum asked for, and what passes by can be seen over the background."""

import numpy as np
import pytest

from mast_ray.soundscapes.noise import density_grid_hz, distractor, noise_of_density, rain_noise
from mast_ray.soundscapes.plan import SoundscapeSpec
from mast_ray.soundscapes.scenes import measured_density
from mast_ray.soundscapes.sites import DISTRACTORS, background_density, draw_day, draw_site

RATE = 16_000
SPEC = SoundscapeSpec(site_shift=0.0)


@pytest.fixture(scope="module")
def background() -> np.ndarray:
    """Power density of the average site at ten in the morning."""
    return background_density(draw_site(SPEC, 0), draw_day(SPEC, 0), 10.0, density_grid_hz(RATE))


def test_noise_has_the_density_it_was_asked_for(background):
    wave = noise_of_density(background, 60 * RATE, RATE, np.random.default_rng(0))
    measured = measured_density(wave, RATE)[64:960]  # 500 Hz to 7.5 kHz
    assert np.abs(10.0 * np.log10(measured / background[64:960])).mean() < 0.3


@pytest.mark.parametrize("kind", DISTRACTORS)
def test_every_distractor_stands_15_db_out_of_the_background_at_the_middle_of_its_levels(kind, background):
    wave = distractor(kind, RATE, np.random.default_rng(1)) * 10.0 ** (-24.0 / 20.0)
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::160]
    density = np.square(np.abs(np.fft.rfft(frames * np.hanning(512)))) * 2.0 / (0.375 * 512 * RATE)
    hertz = np.fft.rfftfreq(512, 1.0 / RATE)
    over = density / np.interp(hertz, density_grid_hz(RATE), background)
    assert 10.0 * np.log10(np.percentile(over[:, 3:250].max(axis=1), 98.0)) > 15.0


def test_strong_rain_lies_over_the_background_and_light_rain_hardly_does(background):
    levels = [
        10.0 * np.log10(measured_density(rain_noise(s, 20 * RATE, RATE, np.random.default_rng(2)), RATE)[384]
                        / background[384])
        for s in (0.2, 1.0)
    ]  # fmt: skip
    assert levels[0] < 5.0 < 10.0 < levels[1]
