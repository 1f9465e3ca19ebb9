"""Real scenes as backgrounds: long beds made of short files, and passing noises;
none of them holds an animal.

A scene folder is laid out like a clip folder (recordings.csv with file, label and perhaps freesound_id), and
its sources keep to the same sides of a split.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from mast_ray.soundscapes.calls import Waveform
from mast_ray.soundscapes.clips import Clip, read_clips
from mast_ray.soundscapes.noise import DENSITY_POINTS
from mast_ray.soundscapes.plan import SoundscapeSpec
from mast_ray.soundscapes.sites import Site, response
from mast_ray.soundscapes.sources import side_of_scene

_CALM = frozenset(("wind", "silence", "sea_waves"))
_RAIN = frozenset(("rain",))
_BED_FILES = 3  # different files in the bed of one site
_JOIN_S = 0.4
_SHORTEST_S = 2.5
_VOICE_RATIO = 14.0
_VOICE_SHARE_OF_BEDS, _VOICE_SHARE_OF_PASSING = 0.004, 0.1


@lru_cache(maxsize=64)
def scenes_of(spec: SoundscapeSpec, kind: str, sides: frozenset[str]) -> tuple[Clip, ...]:
    """Scenes of one kind (calm, rain, passing) whose source is on one of the sides."""
    assert spec.scenes_dir is not None
    return tuple(
        clip
        for clip in read_clips(spec.scenes_dir)
        if _kind(clip.label) == kind and side_of_scene(clip.source, spec) in sides
    )


def _kind(label: str) -> str:
    name = label.lower()
    return "calm" if name in _CALM else "rain" if name in _RAIN else "passing"


@lru_cache(maxsize=1024)
def scene_wave(path: str, sample_rate_hz: int) -> Waveform:
    """A scene without the digital silence around it, of unit power."""
    wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = wave.mean(axis=1)
    sounding = np.flatnonzero(np.abs(mono) > 1e-4)
    if len(sounding) < 0.1 * rate:
        return np.zeros(0, np.float32)
    mono = mono[sounding[0] : sounding[-1] + 1]
    if rate != sample_rate_hz:
        mono = soxr.resample(mono, rate, sample_rate_hz)
    return (mono / np.sqrt(np.square(mono, dtype=np.float64).mean())).astype(np.float32)


def scene_bed(
    scenes: tuple[Clip, ...],
    place_seed: tuple[int, ...],
    occasion: int,
    num_samples: int,
    sample_rate_hz: int,
    rng: np.random.Generator,
    recorder: Site | None = None,
) -> Waveform:
    """Pieces of one scene, joined softly, of unit power; a place has a few
    scenes and each occasion uses one. Given a recorder, the scenes take its colour.
    """
    bed = np.zeros(num_samples, np.float32)
    chosen = _chosen(scenes, place_seed, sample_rate_hz, recorder)
    if not chosen:
        return bed
    wave = chosen[occasion % len(chosen)]
    join = int(_JOIN_S * sample_rate_hz)
    rise = np.sin(np.linspace(0.0, 0.5 * np.pi, join, dtype=np.float32))
    at = -join
    while at < num_samples:
        length = int(rng.uniform(0.7, 1.0) * len(wave))
        offset = int(rng.integers(0, len(wave) - length + 1))
        piece = wave[offset : offset + length].copy()
        piece[:join] *= rise
        piece[-join:] *= rise[::-1]
        first, last = max(at, 0), min(at + length, num_samples)
        bed[first:last] += piece[first - at : last - at]
        at += length - join
    return bed


def passing_scene(scenes: tuple[Clip, ...], sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """One whole scene with soft ends, peak 1; empty where there is none."""
    for _ in range(12 if scenes else 0):
        wave = scene_wave(scenes[int(rng.integers(len(scenes)))].path, sample_rate_hz)
        if len(wave) and not has_voices(wave, sample_rate_hz, _VOICE_SHARE_OF_PASSING):
            fade = min(int(1.5 * sample_rate_hz), len(wave) // 3)
            ramp = (0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, fade))).astype(np.float32) ** 2
            wave = wave / np.abs(wave).max()
            wave[:fade] *= ramp
            wave[-fade:] *= ramp[::-1]
            return wave
    return np.zeros(0, np.float32)


def has_voices(wave: Waveform, sample_rate_hz: int, allowed_share: float) -> bool:
    """Whether narrow peaks come and go above 1 kHz for more than a share of the time.

    Outdoor scenes often hold a bird nobody wrote down (share 0.3 and more; calm wind, rain and sea: 0.00).

    It also turns some machines away; there are scenes enough, and an unlabelled animal would be false truth.
    """
    size = 2 * int(0.016 * sample_rate_hz)
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[:: size // 2]
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(size))))[:, int(1000 * size / sample_rate_hz) :]
    power = power[:, : int(7000 * size / sample_rate_hz)] + 1e-12
    calm = np.median(power, axis=0)
    calm = np.maximum(calm, 0.05 * calm.mean())  # lossy codecs empty quiet bands now and then
    smooth = (power[:-2] + power[1:-1] + power[2:]) / 3.0 / calm  # Gaussian noise stays below about 8
    stands_out = np.median(smooth, axis=1)  # a broad gust or knock lifts all bins: no voice
    return bool(
        ((smooth / np.maximum(stands_out, 1.0)[:, None] > _VOICE_RATIO).sum(axis=1) >= 2).mean()
        > allowed_share
    )


def measured_density(wave: Waveform, sample_rate_hz: int) -> NDArray[np.float64]:
    """One-sided power density on the usual grid, averaged over the wave (Welch)."""
    size = 2 * (DENSITY_POINTS - 1)
    frames = wave[: len(wave) // size * size].reshape(-1, size)
    if len(frames) == 0:
        frames = np.resize(wave, (1, size))
    energy = np.square(np.abs(np.fft.rfft(frames * np.hanning(size)))).mean(axis=0)
    return energy * 2.0 / (0.375 * size * sample_rate_hz)


@lru_cache(maxsize=256)
def _chosen(
    scenes: tuple[Clip, ...], place_seed: tuple[int, ...], sample_rate_hz: int, recorder: Site | None
) -> list[Waveform]:
    """The few scenes of a place; a place with its own recorder has twice as many, heard through it."""
    num_files = 2 * _BED_FILES if recorder else _BED_FILES
    order = np.random.default_rng(place_seed).permutation(len(scenes))
    chosen: list[Waveform] = []
    for index in order:
        wave = scene_wave(scenes[int(index)].path, sample_rate_hz)
        if len(wave) >= _SHORTEST_S * sample_rate_hz and not has_voices(
            wave, sample_rate_hz, _VOICE_SHARE_OF_BEDS
        ):
            chosen.append(_heard_through(recorder, wave, sample_rate_hz) if recorder else wave)
        if len(chosen) == num_files:
            break
    return chosen


def _heard_through(recorder: Site, wave: Waveform, sample_rate_hz: int) -> Waveform:
    """A scene with a recorder's colour, of unit power: its gain is set elsewhere."""
    hertz = np.fft.rfftfreq(len(wave), 1.0 / sample_rate_hz)
    coloured = np.fft.irfft(np.fft.rfft(wave) * response(recorder, hertz), len(wave))
    return (coloured / np.sqrt(np.square(coloured).mean())).astype(np.float32)
