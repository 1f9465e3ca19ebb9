"""What one block of a recording sounds like before any animal: calm
background, weather, and what passes by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.soundscapes.calls import Waveform
from mast_ray.soundscapes.clips import Clip
from mast_ray.soundscapes.noise import (
    density_grid_hz,
    distractor,
    noise_of_density,
    rain_noise,
    slow_curve,
    wind_noise,
)
from mast_ray.soundscapes.plan import RecordingPlan
from mast_ray.soundscapes.scenes import measured_density, passing_scene, scene_bed, scenes_of
from mast_ray.soundscapes.sites import DISTRACTORS, background_density, draw_day, draw_site, response
from mast_ray.soundscapes.sources import scene_sides_of

JOIN_S = 0.5  # neighbouring blocks are cross-faded over this
# Peak level before gain. At -37 dB nothing stood out of the background (best cells 7 to 14 dB over its mean,
# where noise itself fluctuates by 10): a distractor nobody can see is no test of a detector.
_PASSING_PEAK_DB = (-34.0, -14.0)
_SCENE_DB = 3.0  # real scenes over the formula background of the site


class Bed(NamedTuple):
    """Background of one block."""

    wave: Waveform
    rest: Waveform  # what the next block is to be joined to
    density: NDArray[np.floating]  # of the calm part, power per hertz: what levels of calls refer to


def bed_of(
    plan: RecordingPlan, hour: float, num_samples: int, rest: Waveform, rng: np.random.Generator
) -> Bed:
    """Calm background and weather of one block, joined to the rest of the last one."""
    site, day = draw_site(plan.spec, plan.site_index), draw_day(plan.spec, plan.day_index)
    rate = plan.sample_rate_hz
    overlap = int(JOIN_S * rate)
    n = num_samples + overlap
    grid = density_grid_hz(rate)
    density = background_density(site, day, hour, grid)
    wave = noise_of_density(density, n, rate, rng)
    wave *= 1.0 + 0.08 * slow_curve(n, rate, 3.0, rng)
    wind, rain = day.wind_at(hour), day.rain_at(hour)
    gain = np.float32(np.interp(1000.0, grid, response(site, grid)))
    if plan.spec.scenes_dir is not None:
        level = np.float32(10.0 ** ((site.level_db + site.gain_db + _SCENE_DB) / 20.0))
        wave += level * _scenes(plan, "calm", n, rng)
        density = measured_density(wave, rate)
        if rain > 0.0:
            wave += level * np.float32(2.0 * rain) * _scenes(plan, "rain", n, rng)
    elif rain > 0.0:
        wave += gain * rain_noise(rain, n, rate, rng)
    if wind > 0.05:
        wave += gain * wind_noise(wind, n, rate, rng)
    if len(rest):
        u = np.linspace(0.0, 0.5 * np.pi, overlap, dtype=np.float32)[:num_samples]
        wave[: len(u)] = wave[: len(u)] * np.sin(u) + rest[: len(u)] * np.cos(
            u
        )  # equal power: independent noises
    return Bed(wave[:num_samples], wave[num_samples:], density)


def passing_by(
    plan: RecordingPlan, num_samples: int, rng: np.random.Generator
) -> Iterator[tuple[int, Waveform]]:
    """Distractors of one block: (first sample, waveform)."""
    site, rate = draw_site(plan.spec, plan.site_index), plan.sample_rate_hz
    for _ in range(int(rng.poisson(plan.spec.distractors_per_min * num_samples / rate / 60.0))):
        if plan.spec.scenes_dir is None:
            kind = DISTRACTORS[int(rng.choice(len(DISTRACTORS), p=site.distractor_share))]
            wave = distractor(kind, rate, rng)
        else:
            wave = passing_scene(_of_sides(plan, "passing"), rate, rng)
        level_db = site.gain_db + rng.uniform(*_PASSING_PEAK_DB)
        yield int(rng.integers(0, num_samples)), wave * np.float32(10.0 ** (level_db / 20.0))


def _scenes(plan: RecordingPlan, kind: str, num_samples: int, rng: np.random.Generator) -> Waveform:
    """A bed of scenes; at site shift 0 all places share theirs."""
    place = plan.site_index if plan.spec.site_shift > 0 else 0
    seeds = (plan.spec.seed, 6, place, len(kind))
    occasion = 31 * plan.day_index + plan.start_second // 60
    own_recorder = draw_site(plan.spec, plan.site_index) if plan.spec.source_groups == "four_ways" else None
    scenes, rate = _of_sides(plan, kind), plan.sample_rate_hz
    return scene_bed(scenes, seeds, occasion, num_samples, rate, rng, own_recorder)


def _of_sides(plan: RecordingPlan, kind: str) -> tuple[Clip, ...]:
    return scenes_of(plan.spec, kind, scene_sides_of(plan))
