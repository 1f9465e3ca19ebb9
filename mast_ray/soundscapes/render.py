"""Renders one planned recording into a waveform and its exact events, minute by minute.

Everything follows from the plan's seeds: (seed, site, day, second of day) and the index of the minute. Times
are seconds from the start of the recording. A call passes through the air (reverberation) and the recorder
(response, gain) of its site, then its box is measured, then its level is set against the background at rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.soundscapes.bed import bed_of, passing_by
from mast_ray.soundscapes.boxes import CallBox, measured_box
from mast_ray.soundscapes.callers import Calling, call_of, callings_of
from mast_ray.soundscapes.calls import Waveform
from mast_ray.soundscapes.noise import density_grid_hz
from mast_ray.soundscapes.plan import RecordingPlan, SoundscapeSpec, plan_archive, spec_for_hours
from mast_ray.soundscapes.sites import draw_site, impulse_response, response

__all__ = [
    "Event",
    "ReceivedCall",
    "RecordingPlan",
    "SoundscapeSpec",
    "plan_archive",
    "received_call",
    "render_blocks",
    "spec_for_hours",
]

BLOCK_S = 60
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


class ReceivedCall(NamedTuple):
    """A call as the recorder hears it, before its level is set; the box counts from its first sample."""

    wave: Waveform
    box: CallBox
    label: str


def render_blocks(plan: RecordingPlan) -> Iterator[tuple[Waveform, list[Event]]]:
    """Blocks of at most a minute, so that a recording of any length needs the memory of one."""
    rate = plan.sample_rate_hz
    block_samples, tail_samples = BLOCK_S * rate, _LONGEST_S * rate
    around = np.zeros(block_samples + tail_samples, np.float32)  # background, weather, distractors
    animals = np.zeros_like(around)
    rest: Waveform = np.zeros(0, np.float32)
    recent: list[Event] = []
    for index, first in enumerate(range(0, plan.num_samples, block_samples)):
        rng = np.random.default_rng([*plan.seeds, index])
        num_samples = min(block_samples, plan.num_samples - first)
        hour = (plan.start_second + first / rate) / 3600.0 % 24.0
        bed = bed_of(plan, hour, num_samples, rest, rng)
        rest = bed.rest
        around[:num_samples] += bed.wave
        for start, wave in passing_by(plan, num_samples, rng):
            around[start : start + len(wave)] += wave
        events: list[Event] = []
        for calling in callings_of(plan, hour, num_samples / rate, rng):
            call = received_call(plan, calling)
            start = round(calling.start_s * rate)
            if call is None or first + start + len(call.wave) > plan.num_samples:
                continue
            target = _band_power(bed.density, call.box, rate) * 10.0 ** (calling.target_snr_db / 10.0)
            event = _event(call, target, around[start:num_samples], (first + start) / rate, rate)
            if event.snr_db < plan.spec.min_snr_db or any(_overlap(event, e) > _MAX_OVERLAP for e in recent):
                continue
            animals[start : start + len(call.wave)] += call.wave * np.float32(
                np.sqrt(target / _box_power(call, rate))
            )
            events.append(event)
            recent = [e for e in recent if e.end_s > event.begin_s - _LONGEST_S] + [event]
        yield np.clip(around[:num_samples] + animals[:num_samples], -1.0, 1.0), events
        for canvas in (around, animals):
            canvas[:tail_samples] = canvas[block_samples:]
            canvas[tail_samples:] = 0.0


def received_call(plan: RecordingPlan, calling: Calling) -> ReceivedCall | None:
    """A rendition after air and recorder, with the box measured on it."""
    found = call_of(plan, calling)
    if found is None:
        return None
    call, label = found
    longest = len(call) + len(_air(plan.spec, plan.site_index))
    padded = 1 << (longest - 1).bit_length()
    spectrum = np.fft.rfft(call, padded) * _path(plan.spec, plan.site_index, padded)
    wave = np.fft.irfft(spectrum, padded)[:longest].astype(np.float32)
    return ReceivedCall(wave, measured_box(wave, plan.sample_rate_hz, spectrum), label)


def _event(call: ReceivedCall, target_power: float, around: Waveform, start_s: float, rate: int) -> Event:
    """The row of truth of a call whose first sample lies at `start_s`, where `around` begins too."""
    box = call.box
    noise = _segment_power(around[round(box.begin_s * rate) : round(box.end_s * rate)], box, rate)
    return Event(
        round(start_s + box.begin_s, 4),
        round(start_s + box.end_s, 4),
        round(box.low_hz, 1),
        round(box.high_hz, 1),
        call.label,
        round(float(10.0 * np.log10(target_power / max(noise, 1e-20))), 2),
    )


@lru_cache(maxsize=64)
def _air(spec: SoundscapeSpec, site_index: int) -> Waveform:
    return impulse_response(draw_site(spec, site_index), spec.seed)


@lru_cache(maxsize=64)
def _path(spec: SoundscapeSpec, site_index: int, num_samples: int) -> NDArray[np.complex64]:
    """Transfer function from the animal to the file."""
    site = draw_site(spec, site_index)
    heard = response(site, np.fft.rfftfreq(num_samples, 1.0 / site.sample_rate_hz))
    return (np.fft.rfft(_air(spec, site_index), num_samples) * heard).astype(np.complex64)


def _box_power(call: ReceivedCall, rate: int) -> float:
    inside = call.wave[round(call.box.begin_s * rate) : round(call.box.end_s * rate)]
    return max(float(np.square(inside).mean()), 1e-20)


def _band_power(density: NDArray[np.floating], box: CallBox, rate: int) -> float:
    """Power of the calm background inside the band of a box."""
    hertz = np.linspace(box.low_hz, box.high_hz, 64)
    return float(np.trapezoid(np.interp(hertz, density_grid_hz(rate), density), hertz))


def _segment_power(segment: Waveform, box: CallBox, rate: int) -> float:
    """Power of what is really there inside the band of a box."""
    if len(segment) < 16:
        return 0.0
    padded = 1 << (len(segment) - 1).bit_length()
    energy = np.square(np.abs(np.fft.rfft(segment * np.hanning(len(segment)), padded)))
    low, high = (round(hertz * padded / rate) for hertz in (box.low_hz, box.high_hz))
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
