"""Renders one planned recording into a waveform and its exact events, minute by minute.

Everything follows from the plan's seeds: (seed, site, day, second of day) and the index of the minute. Times are
seconds from the start of the recording. The signal path is: calls and distractors -> air (reverberation) -> recorder
(response, gain) -> own noise of the recorder.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.recordings.calls import Waveform, render_call
from mast_ray.recordings.synthetic_boxes import CallBox, measured_box
from mast_ray.recordings.synthetic_noise import (
    density_grid_hz,
    distractor,
    noise_of_density,
    rain_noise,
    slow_curve,
    wind_noise,
)
from mast_ray.recordings.synthetic_plan import RecordingPlan, SoundscapeSpec, plan_archive, spec_for_hours
from mast_ray.recordings.synthetic_sites import (
    DISTRACTORS,
    Day,
    Site,
    background_density,
    draw_day,
    draw_site,
    impulse_response,
    response,
    species_of,
)

__all__ = ["Event", "RecordingPlan", "SoundscapeSpec", "plan_archive", "render_blocks", "render_recording"]
__all__ += ["spec_for_hours"]

BLOCK_S = 60
_JOIN_S = 0.5  # neighbouring blocks of background are cross-faded
_LONGEST_S = 40  # of anything that is pasted
_MAX_OVERLAP = (
    0.5  # calls whose boxes overlap more than this could not be told apart: the later one is left out
)


class Event(NamedTuple):
    """One labelled call."""

    begin_s: float
    end_s: float
    low_hz: float
    high_hz: float
    label: str
    snr_db: float  # power of the call over power of the background inside the box


class _Received(NamedTuple):
    """A call as the recorder hears it, before its level is set."""

    wave: Waveform
    box: CallBox
    label: str


class _Calling(NamedTuple):
    """One call to come: when, by whom, how loud."""

    start_s: float
    species: int
    target_snr_db: float
    seed: int


def render_recording(plan: RecordingPlan) -> tuple[Waveform, list[Event]]:
    """The whole recording: mono float32 in [-1, 1], and its events in order of time."""
    blocks = list(render_blocks(plan))
    events = sorted(event for _, block_events in blocks for event in block_events)
    return np.concatenate([wave for wave, _ in blocks]), events


def render_blocks(plan: RecordingPlan) -> Iterator[tuple[Waveform, list[Event]]]:
    """Blocks of at most a minute, so that a recording of any length needs the memory of one."""
    spec, site, day = plan.spec, draw_site(plan.spec, plan.site_index), draw_day(plan.spec, plan.day_index)
    rate = plan.sample_rate_hz
    block_samples, tail_samples = BLOCK_S * rate, _LONGEST_S * rate
    around = np.zeros(block_samples + tail_samples, np.float32)  # background, weather, distractors
    animals = np.zeros_like(around)
    join: Waveform = np.zeros(0, np.float32)
    recent: list[Event] = []
    for index, first in enumerate(range(0, plan.num_samples, block_samples)):
        rng = np.random.default_rng([*plan.seeds, index])
        num_samples = min(block_samples, plan.num_samples - first)
        hour = (plan.start_second + first / rate) / 3600.0 % 24.0
        bed, join = _bed(site, day, hour, num_samples, join, rng)
        around[:num_samples] += bed
        for start, wave in _distractors(spec, site, num_samples, rng):
            around[start : start + len(wave)] += wave
        events: list[Event] = []
        density = background_density(site, day, hour, density_grid_hz(rate))
        for calling in _callings(spec, site, day, hour, num_samples / rate, rng):
            received = _received(spec, plan.site_index, calling)
            start = round(calling.start_s * rate)
            wave, box = received.wave, received.box
            target = _band_power(density, box, rate) * 10.0 ** (calling.target_snr_db / 10.0)
            b, e = round(box.begin_s * rate), round(box.end_s * rate)
            power = float(np.square(wave[b:e]).mean())
            wave = wave * np.float32(np.sqrt(target / max(power, 1e-20)))
            noise = _segment_power(around[start + b : min(start + e, num_samples)], box, rate)
            offset_s = (first + start) / rate
            event = Event(
                round(offset_s + box.begin_s, 4),
                round(offset_s + box.end_s, 4),
                round(box.low_hz, 1),
                round(box.high_hz, 1),
                received.label,
                round(float(10.0 * np.log10(target / max(noise, 1e-20))), 2),
            )
            if event.snr_db < spec.min_snr_db or first + start + len(wave) > plan.num_samples:
                continue
            if any(_overlap(event, other) > _MAX_OVERLAP for other in recent):
                continue
            animals[start : start + len(wave)] += wave
            events.append(event)
            recent = [other for other in recent if other.end_s > event.begin_s - _LONGEST_S] + [event]
        mixed = np.clip(around[:num_samples] + animals[:num_samples], -1.0, 1.0)
        yield mixed, events
        for canvas in (around, animals):
            canvas[:tail_samples] = canvas[block_samples:]
            canvas[tail_samples:] = 0.0


def _bed(
    site: Site, day: Day, hour: float, num_samples: int, join: Waveform, rng: np.random.Generator
) -> tuple[Waveform, Waveform]:
    """Calm background and weather of one block, joined to the last one, and what the next is to be joined to."""
    rate = site.sample_rate_hz
    overlap = int(_JOIN_S * rate)
    n = num_samples + overlap
    grid = density_grid_hz(rate)
    bed = noise_of_density(background_density(site, day, hour, grid), n, rate, rng)
    bed *= 1.0 + 0.08 * slow_curve(n, rate, 3.0, rng)
    heard = response(site, grid)
    gain = np.float32(np.interp(1000.0, grid, heard))
    wind, rain = day.wind_at(hour), day.rain_at(hour)
    if wind > 0.05:
        bed += gain * wind_noise(wind, n, rate, rng)
    if rain > 0.0:
        bed += gain * rain_noise(rain, n, rate, rng)
    if len(join):
        u = np.linspace(0.0, 0.5 * np.pi, overlap, dtype=np.float32)[:num_samples]
        bed[: len(u)] = bed[: len(u)] * np.sin(u) + join[: len(u)] * np.cos(
            u
        )  # equal power: the two are independent
    return bed[:num_samples], bed[num_samples:]


def _distractors(
    spec: SoundscapeSpec, site: Site, num_samples: int, rng: np.random.Generator
) -> Iterator[tuple[int, Waveform]]:
    """What passes by in one block: (first sample, waveform)."""
    rate = site.sample_rate_hz
    for _ in range(int(rng.poisson(spec.distractors_per_min * num_samples / rate / 60.0))):
        kind = DISTRACTORS[int(rng.choice(len(DISTRACTORS), p=site.distractor_share))]
        wave = distractor(kind, rate, rng)
        level_db = site.gain_db + rng.uniform(-46.0, -28.0)
        yield int(rng.integers(0, num_samples)), wave * np.float32(10.0 ** (level_db / 20.0))


def _callings(
    spec: SoundscapeSpec, site: Site, day: Day, hour: float, block_s: float, rng: np.random.Generator
) -> list[_Calling]:
    """Bouts of animals that call in this block, in order of time."""
    species = species_of(spec)
    rates = np.array([s.activity(hour) for s in species]) * site.abundance * day.activity
    daily = np.array([np.mean([s.activity(h) for h in range(24)]) for s in species])
    usual = float(
        (daily * site.abundance).sum()
    )  # of the reference day: dawn is above, noon below the average
    bout_calls = np.array([s.calls_per_bout for s in species])
    expected_calls = spec.density_per_min * block_s / 60.0 * site.density * rates / max(usual, 1e-9)
    callings = []
    for index, bouts in enumerate(rng.poisson(expected_calls / bout_calls)):
        for _ in range(int(bouts)):
            snr_db = rng.normal(spec.snr_db, spec.snr_spread_db)
            start_s = float(rng.uniform(0.0, block_s))
            for _ in range(1 + int(rng.poisson(bout_calls[index] - 1.0))):
                if start_s >= block_s:
                    break
                level = float(np.clip(snr_db + rng.normal(0.0, 1.5), spec.min_snr_db, 40.0))
                callings.append(_Calling(start_s, index, level, int(rng.integers(2**32))))
                start_s += (
                    species[index].duration_s + 0.3 + species[index].repeat_s * float(rng.uniform(0.6, 1.6))
                )
    return sorted(callings)


def _received(spec: SoundscapeSpec, site_index: int, calling: _Calling) -> _Received:
    """A rendition after air and recorder, with the box measured on it."""
    site, species = draw_site(spec, site_index), species_of(spec)[calling.species]
    call = render_call(species, site.sample_rate_hz, np.random.default_rng(calling.seed))
    longest = len(call) + len(_air(spec, site_index))
    padded = 1 << (longest - 1).bit_length()
    spectrum = np.fft.rfft(call, padded) * _path(spec, site_index, padded)
    wave = np.fft.irfft(spectrum, padded)[:longest].astype(np.float32)
    return _Received(wave, measured_box(wave, site.sample_rate_hz, spectrum), species.name)


@lru_cache(maxsize=64)
def _air(spec: SoundscapeSpec, site_index: int) -> Waveform:
    return impulse_response(draw_site(spec, site_index), spec.seed)


@lru_cache(maxsize=64)
def _path(spec: SoundscapeSpec, site_index: int, num_samples: int) -> NDArray[np.complex64]:
    """Transfer function from the animal to the file."""
    site = draw_site(spec, site_index)
    heard = response(site, np.fft.rfftfreq(num_samples, 1.0 / site.sample_rate_hz))
    return (np.fft.rfft(_air(spec, site_index), num_samples) * heard).astype(np.complex64)


def _band_power(density: NDArray[np.float64], box: CallBox, sample_rate_hz: int) -> float:
    """Power of the calm background inside the band of a box."""
    grid = density_grid_hz(sample_rate_hz)
    hertz = np.linspace(box.low_hz, box.high_hz, 64)
    return float(np.trapezoid(np.interp(hertz, grid, density), hertz))


def _segment_power(segment: Waveform, box: CallBox, sample_rate_hz: int) -> float:
    """Power of what is really there inside the band of a box."""
    if len(segment) < 16:
        return 0.0
    padded = 1 << (len(segment) - 1).bit_length()
    energy = np.square(np.abs(np.fft.rfft(segment * np.hanning(len(segment)), padded)))
    low, high = (round(hertz * padded / sample_rate_hz) for hertz in (box.low_hz, box.high_hz))
    return float(2.0 * energy[low : high + 1].sum() / padded / (0.375 * len(segment)))


def _overlap(a: Event, b: Event) -> float:
    """Intersection over union of two boxes in seconds and hertz."""
    width = min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s)
    height = min(a.high_hz, b.high_hz) - max(a.low_hz, b.low_hz)
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    area = (a.end_s - a.begin_s) * (a.high_hz - a.low_hz) + (b.end_s - b.begin_s) * (b.high_hz - b.low_hz)
    return shared / (area - shared)
