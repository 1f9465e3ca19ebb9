"""Who calls when, how loud, and with which waveform: species made by formulas, or
syllables cut from real clips.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import soxr

from mast_ray.soundscapes.calls import Waveform, render_call
from mast_ray.soundscapes.clips import CLIP_RATE_HZ, LONGEST_S, isolated_calls
from mast_ray.soundscapes.plan import RecordingPlan, SoundscapeSpec
from mast_ray.soundscapes.sites import draw_day, draw_site, species_of
from mast_ray.soundscapes.sources import clips_by_label, sides_of, world_labels

_CLIP_TRIES = 8  # some clips hold no clean syllable


class Calling(NamedTuple):
    """One call to come; times are seconds from the start of its block."""

    start_s: float
    species: int
    target_snr_db: float
    animal_seed: int  # equal for all calls of one bout
    call_seed: int


def callings_of(plan: RecordingPlan, hour: float, block_s: float, rng: np.random.Generator) -> list[Calling]:
    """Bouts of the animals that call in one block, in order of time."""
    spec, site, day = plan.spec, draw_site(plan.spec, plan.site_index), draw_day(plan.spec, plan.day_index)
    species = species_of(spec)
    rates = np.array([s.activity(hour) for s in species]) * site.abundance * day.activity
    bout_calls = np.array([s.calls_per_bout for s in species])
    usual = float(
        (_daily_activity(spec) * site.abundance).sum()
    )  # dawn is above the day's average, noon below
    expected_calls = spec.density_per_min * block_s / 60.0 * site.density * rates / max(usual, 1e-9)
    callings = []
    for index, num_bouts in enumerate(rng.poisson(expected_calls / bout_calls)):
        for _ in range(int(num_bouts)):
            snr_db, animal_seed = rng.normal(spec.snr_db, spec.snr_spread_db), int(rng.integers(2**32))
            start_s = float(rng.uniform(0.0, block_s))
            for _ in range(1 + int(rng.poisson(bout_calls[index] - 1.0))):
                if start_s >= block_s:
                    break
                level_db = float(np.clip(snr_db + rng.normal(0.0, 1.5), spec.min_snr_db, 40.0))
                callings.append(Calling(start_s, index, level_db, animal_seed, int(rng.integers(2**32))))
                pause_s = species[index].repeat_s * float(rng.uniform(0.6, 1.6))
                start_s += (
                    (species[index].duration_s if spec.clips_dir is None else LONGEST_S) + 0.3 + pause_s
                )
    return sorted(callings)


def call_of(plan: RecordingPlan, calling: Calling) -> tuple[Waveform, str] | None:
    """Waveform (peak 1, at the site's rate) and label; None where the clips of
    this species hold no syllable.
    """
    spec, rate = plan.spec, plan.sample_rate_hz
    if spec.clips_dir is None:
        species = species_of(spec)[calling.species]
        return render_call(species, rate, np.random.default_rng(calling.call_seed)), species.name
    labels = world_labels(spec)
    label = labels[calling.species % len(labels)]
    clips = clips_by_label(spec, sides_of(plan))[label]
    order = np.random.default_rng(calling.animal_seed).permutation(len(clips))[:_CLIP_TRIES]
    for index in order:
        calls = isolated_calls(clips[int(index)].path)
        if calls:
            wave = calls[calling.call_seed % len(calls)]
            return (wave if rate == CLIP_RATE_HZ else soxr.resample(wave, CLIP_RATE_HZ, rate)), label
    return None


@lru_cache(maxsize=64)
def _daily_activity(spec: SoundscapeSpec) -> np.ndarray:
    """Mean activity of each species over 24 h."""
    return np.array([np.mean([s.activity(hour) for hour in range(24)]) for s in species_of(spec)])
