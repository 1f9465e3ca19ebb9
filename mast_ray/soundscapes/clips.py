"""Real animal clips as calls: which clips there are, who recorded them, and their
syllables cut free of everything else.

A clip folder holds recordings.csv (here or in folders below) with the columns file and label, and
freesound_id or recordist where known. Clips of one source sound alike (same animal, microphone, place), so a
source belongs to exactly one side of a split, chosen by its hash.
"""

from __future__ import annotations

import csv
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.soundscapes.boxes import measured_box
from mast_ray.soundscapes.calls import Waveform

Side = Literal["seen", "temporal", "site"]
CLIP_RATE_HZ = 16_000
_SIDES: tuple[tuple[float, Side], ...] = (
    (0.6, "seen"),
    (0.8, "temporal"),
    (1.0, "site"),
)  # cumulative shares
_WINDOW, _HOP = 512, 128
_SYLLABLE_GAP_S = 0.3  # silence that parts two events
LONGEST_S = 3.0  # continuous singers are cut into pieces
_SHORTEST_S = 0.03
_LOWEST_HZ = 150.0
_LEAST_SNR_DB = 15.0  # of a syllable over its own clip's noise
_RUMBLE_HZ = 1500.0  # below, power counts as f^2: wind and handling noise would own every box otherwise
_RUMBLE_TOP_HZ = 400.0  # what lies wholly below is more often wind in the clip than its animal
_EVENT_CONTOUR, _STEADY_CONTOUR = 10.0**-1.6, 10.0**-1.2  # of a band below its strongest bin
_HARMONIC_GAP_HZ = 700.0
_TRIM_DB = 14.0  # fainter fringes of a real call are cut off: under a new background nobody could see them
_EDGE_HZ, _EDGE_S = 60.0, 0.008  # how softly a call ends at its box
_WIDEST_RATIO = 8.0  # a band of more than three octaves is a bang, not a voice: there are clips enough

_CUT_BEFORE: dict[str, tuple[Waveform, ...]] = {}  # calls that another process has cut: see call_store.py


@dataclass(frozen=True)
class Clip:
    """One row of a clip table."""

    path: str
    label: str
    source: str  # clips that share it may not be told apart by a split


@lru_cache(maxsize=8)
def read_clips(folder: str) -> tuple[Clip, ...]:
    """All clips of all recordings.csv in and below a folder, in a fixed order."""
    tables = sorted(Path(folder).rglob("recordings.csv"))
    if not tables:
        raise DataError(
            f"{folder} holds no recordings.csv (columns file,label,...):\npoint to a folder of clips"
        )
    clips = []
    for table in tables:
        with table.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                if not row.get("file") or not row.get("label"):
                    raise DataError(f"{table} has a row without file or label:\ngive every clip both")
                clips.append(Clip(str(table.parent / row["file"]), row["label"], _source(row)))
    return tuple(clips)


def side_of(source: str, seed: int) -> Side:
    """The side a source belongs to: 60 % seen, 20 % held-out dates, 20 % held-out sites."""
    digest = hashlib.sha256(f"{seed}:{source}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return next(side for limit, side in _SIDES if place < limit)


def _source(row: dict[str, str]) -> str:
    """freesound upload, else recordist, else file name without the running number of a series."""
    if row.get("freesound_id"):
        return f"freesound:{row['freesound_id'].strip()}"
    if row.get("recordist"):
        return f"recordist:{row['recordist'].strip().lower()}"
    return f"file:{re.sub(r'[_-]?[0-9]+$', '', Path(row['file']).stem).lower()}"


@lru_cache(maxsize=16_384)
def isolated_calls(path: str) -> tuple[Waveform, ...]:
    """Syllables of a clip (16 kHz, peak 1): noise suppressed, nothing outside their own seconds and hertz."""
    if path in _CUT_BEFORE:
        return _CUT_BEFORE[path]
    wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = wave.mean(axis=1)
    if rate != CLIP_RATE_HZ:
        mono = soxr.resample(mono, rate, CLIP_RATE_HZ).astype(np.float32)
    return tuple(isolate(mono))


def remember_calls(calls: dict[str, tuple[Waveform, ...]]) -> None:
    """Take the syllables of these clips (by path) as cut."""
    _CUT_BEFORE.update(calls)


def isolate(clip: Waveform) -> list[Waveform]:
    """Cut the events out of a 16 kHz clip; silence of 0.3 s parts two events."""
    sounding = np.flatnonzero(clip)  # some collections pad with digital silence, which is no noise floor
    if len(sounding) < _WINDOW * 4:
        return []
    clip = clip[sounding[0] : sounding[-1] + 1]
    spectrum = _stft(clip)  # (n, K)
    hertz = np.fft.rfftfreq(_WINDOW, 1.0 / CLIP_RATE_HZ)
    rumble = np.where(hertz < _LOWEST_HZ, 0.0, np.square(np.minimum(hertz / _RUMBLE_HZ, 1.0)))
    power = np.square(np.abs(spectrum)) * rumble
    floor = np.percentile(power, 15.0, axis=0)
    contour = _EVENT_CONTOUR
    excess = np.maximum(power - 4.0 * floor, 0.0)
    if excess.sum() < 0.3 * power.sum():  # sings all the time: its own level is no floor, quiet bands are
        floor = np.full_like(floor, np.percentile(floor[hertz >= _LOWEST_HZ], 20.0))
        excess, contour = np.maximum(power - 4.0 * floor, 0.0), _STEADY_CONTOUR
    calls = []
    main = _band(excess.sum(axis=0), contour)
    for first, last in _active_runs(excess[:, main].sum(axis=1)):
        part = slice(first, last + 1)
        band = _band(excess[part, main].sum(axis=0), contour)
        band = slice(main.start + band.start, main.start + band.stop)
        inside, noise = power[part, band].sum(), floor[band].sum() * (last + 1 - first)
        if (
            inside < noise * 10.0 ** (_LEAST_SNR_DB / 10.0)
            or (last - first) * _HOP < _SHORTEST_S * CLIP_RATE_HZ
        ):
            continue
        if hertz[band.stop - 1] > _WIDEST_RATIO * hertz[band.start] or hertz[band.stop - 1] < _RUMBLE_TOP_HZ:
            continue
        gain = np.zeros(power[part].shape, np.float32)
        gain[:, band] = excess[part, band] / np.maximum(power[part, band], 1e-20)
        call = _istft(spectrum[part] * _blurred(gain))
        if np.abs(call).max() > 0.0:
            calls.append(_trimmed(call))
    return calls


def _active_runs(envelope: NDArray[np.floating]) -> list[tuple[int, int]]:
    """(first, last) frames of events: within 20 dB of the clip's loudest, gaps
    under 0.3 s closed, long ones cut.
    """
    loud = np.flatnonzero(envelope > 0.01 * envelope.max())
    if len(loud) == 0:
        return []
    gap_frames = _SYLLABLE_GAP_S * CLIP_RATE_HZ / _HOP
    longest = int(LONGEST_S * CLIP_RATE_HZ / _HOP)
    runs = []
    for run in np.split(loud, np.flatnonzero(np.diff(loud) >= gap_frames) + 1):
        first, last = int(run[0]), int(run[-1])
        pieces = -(-(last + 1 - first) // longest)
        edges = np.linspace(first, last + 1, pieces + 1).astype(int)
        runs += [(int(a), int(b) - 1) for a, b in pairwise(edges)]
    return runs


def _band(marginal: NDArray[np.floating], contour: float) -> slice:
    """Bins around the strongest that stay above `contour` of it, gaps of a harmonic's width closed."""
    smooth = np.convolve(marginal, (0.25, 0.5, 0.25), mode="same")
    above = np.flatnonzero(smooth > contour * smooth.max())
    if len(above) == 0:
        return slice(0, 1)
    gap_bins = _HARMONIC_GAP_HZ * _WINDOW / CLIP_RATE_HZ
    runs = np.split(above, np.flatnonzero(np.diff(above) > gap_bins) + 1)
    best = max(runs, key=lambda run: float(smooth[run].sum()))
    return slice(int(best[0]), int(best[-1]) + 1)


def _stft(wave: Waveform) -> NDArray[np.complex64]:
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(wave, _WINDOW), _WINDOW)[::_HOP]
    return np.fft.rfft(frames * _window()).astype(np.complex64)


def _istft(spectrum: NDArray[np.complexfloating]) -> Waveform:
    """Overlap-add with the same window: a quarter-window hop of squared Hann sums to a constant 1.5."""
    frames = np.fft.irfft(spectrum, _WINDOW).astype(np.float32) * _window()
    wave = np.zeros((len(frames) - 1) * _HOP + _WINDOW, np.float32)
    for index, frame in enumerate(frames):
        wave[index * _HOP : index * _HOP + _WINDOW] += frame
    return wave / np.float32(1.5)


def _window() -> Waveform:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)).astype(np.float32)


def _blurred(gain: NDArray[np.float32]) -> NDArray[np.float32]:
    """Gain averaged over three frames, so that what remains of the noise does not tinkle."""
    padded = np.pad(gain, ((1, 1), (0, 0)), mode="edge")
    return (padded[:-2] + padded[1:-1] + padded[2:]) / 3.0


def _trimmed(call: Waveform) -> Waveform:
    """A call with nothing left beyond its -14 dB contour, soft at the edges, peak 1."""
    box = measured_box(call, CLIP_RATE_HZ, contour_db=_TRIM_DB)
    hertz = np.fft.rfftfreq(len(call), 1.0 / CLIP_RATE_HZ)
    beyond_hz = np.maximum(box.low_hz - hertz, hertz - box.high_hz)
    keep = 0.5 + 0.5 * np.cos(np.pi * np.clip(beyond_hz / _EDGE_HZ, 0.0, 1.0))
    edge = int(_EDGE_S * CLIP_RATE_HZ)
    first, last = (round(seconds * CLIP_RATE_HZ) for seconds in (box.begin_s, box.end_s))
    wave = np.fft.irfft(np.fft.rfft(call) * keep, len(call))[max(first - edge, 0) : last + edge]
    ramp = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, min(edge, len(wave) // 2)))
    wave[: len(ramp)] *= ramp
    wave[-len(ramp) :] *= ramp[::-1]
    return (wave / np.abs(wave).max()).astype(np.float32)
