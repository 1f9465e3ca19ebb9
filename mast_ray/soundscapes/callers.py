"""Who calls when, how loud, and with which waveform: species made by formulas, or
syllables cut from real clips.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import soxr

from mast_ray.soundscapes.calls import Waveform, render_call
from mast_ray.soundscapes.clips import (
    CLIP_RATE_HZ,
    LONGEST_S,
    Clip,
    Side,
    isolated_calls,
    read_clips,
    side_of,
)
from mast_ray.soundscapes.plan import RecordingPlan, SoundscapeSpec
from mast_ray.soundscapes.sites import draw_day, draw_site, species_of

_CLIP_TRIES = 8  # some clips hold no clean syllable
ALL_SIDES: frozenset[Side] = frozenset(("seen", "temporal", "site"))


class Calling(NamedTuple):
    """One call to come; times are seconds from the start of its block."""

    start_s: float
    species: int
    target_snr_db: float
    animal_seed: int  # equal for all calls of one bout
    call_seed: int


def sides_of(plan: RecordingPlan) -> frozenset[Side]:
    """The sources a recording may use: recordings that are split from each other share none."""
    match plan.spec.source_groups:
        case "none":
            return ALL_SIDES
        case "site":
            return frozenset(("site",)) if plan.role == "site_ood" else frozenset(("seen", "temporal"))
        case "site_and_date":
            held_out: dict[str, Side] = {"site_ood": "site", "temporal_ood": "temporal"}
            return frozenset((held_out.get(plan.role, "seen"),))


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
    clips = clips_by_label(spec.clips_dir, sides_of(plan), spec.seed)[label]
    order = np.random.default_rng(calling.animal_seed).permutation(len(clips))[:_CLIP_TRIES]
    for index in order:
        calls = isolated_calls(clips[int(index)].path)
        if calls:
            wave = calls[calling.call_seed % len(calls)]
            return (wave if rate == CLIP_RATE_HZ else soxr.resample(wave, CLIP_RATE_HZ, rate)), label
    return None


@lru_cache(maxsize=64)
def clips_by_label(clips_dir: str, sides: frozenset[Side], seed: int) -> dict[str, tuple[Clip, ...]]:
    """Clips of each label whose source is on one of the sides."""
    chosen: dict[str, list[Clip]] = {}
    for clip in read_clips(clips_dir):
        if side_of(clip.source, seed) in sides:
            chosen.setdefault(clip.label, []).append(clip)
    return {label: tuple(clips) for label, clips in chosen.items()}


@lru_cache(maxsize=64)
def world_labels(spec: SoundscapeSpec) -> tuple[str, ...]:
    """The labels of a world made of clips: those that have sources on every side come first."""
    assert spec.clips_dir is not None
    sides = [clips_by_label(spec.clips_dir, frozenset((side,)), spec.seed) for side in sorted(ALL_SIDES)]
    everywhere = sorted(set.intersection(*(set(side) for side in sides)))
    if spec.source_groups == "none" or not everywhere:
        everywhere = sorted(clips_by_label(spec.clips_dir, ALL_SIDES, spec.seed))
    order = np.random.default_rng([spec.seed, 5]).permutation(len(everywhere))[: spec.num_species]
    return tuple(everywhere[int(index)] for index in order)


@lru_cache(maxsize=64)
def _daily_activity(spec: SoundscapeSpec) -> np.ndarray:
    """Mean activity of each species over 24 h."""
    return np.array([np.mean([s.activity(hour) for hour in range(24)]) for s in species_of(spec)])
