"""Animal calls made by formulas: a species is a drawn parameter set, a rendition is
that set with small variation.

A call is a mono float32 waveform with peak 1 and nothing before or after it;
frequencies are hertz, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Waveform = NDArray[np.float32]
Family = Literal["chirp", "arch", "trill", "stack", "pulses", "insect", "frog", "warble", "phrase"]
DielPattern = Literal["dawn", "day", "dusk", "night"]

_PEAK_HOUR: dict[DielPattern, float] = {"dawn": 6.0, "day": 11.0, "dusk": 20.0, "night": 0.5}
_DIEL_OF_FAMILY: dict[Family, tuple[DielPattern, ...]] = {
    "chirp": ("dawn", "dawn", "day"),
    "arch": ("dawn", "dawn", "dusk"),
    "trill": ("dawn", "day"),
    "stack": ("day", "dawn"),
    "pulses": ("night", "dusk"),
    "insect": ("night", "night", "day"),
    "frog": ("night", "dusk"),
    "warble": ("dawn", "day"),
    "phrase": ("dawn", "dawn", "dusk"),
}
_FADE_S = 0.008


@dataclass(frozen=True)
class Species:
    """What makes one sonotype recognisable."""

    name: str
    family: Family
    low_hz: float  # of the carrier, before harmonics
    high_hz: float
    duration_s: float
    rate_hz: float  # of syllables, pulses or modulation
    curve: float  # exponent of a sweep, skew of an arch, duty of a pulse
    direction: Literal[-1, 1]  # down or up
    harmonics: tuple[float, ...]  # amplitude of each multiple of the carrier
    syllables: tuple[float, ...]  # relative pitch of the syllables of a phrase
    repeat_s: float  # silence between two calls of one animal
    calls_per_bout: float
    pattern: DielPattern
    diel_width_h: float

    def activity(self, hour: float) -> float:
        """Relative calling rate at a local hour: 1 at its peak, never quite 0."""
        distance = abs((hour - _PEAK_HOUR[self.pattern] + 12.0) % 24.0 - 12.0)
        return 0.03 + 0.97 * float(np.exp(-0.5 * (distance / self.diel_width_h) ** 2))


def draw_species(seed: int, index: int) -> Species:
    """Species `index` of the world `seed`; families alternate so that any few neighbours differ."""
    rng = np.random.default_rng([seed, 11, index])
    families = get_args(Family)
    family: Family = families[index % len(families)]

    def between(low: float, high: float) -> float:  # log-uniform: ears and mel bins count octaves
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    harmonics: tuple[float, ...] = (1.0,)
    match family:
        case "chirp":
            low, duration = between(1500, 4500), between(0.09, 0.45)
            high, rate, curve = min(low * between(1.25, 1.9), 7400), 1.0, between(0.5, 2.0)
        case "arch":
            low, duration = between(1200, 4200), between(0.15, 0.7)
            high, rate, curve = min(low * between(1.2, 1.7), 7400), 1.0, between(0.6, 1.6)
        case "trill":
            low, duration = between(2200, 5000), between(0.6, 2.2)
            high, rate, curve = min(low * between(1.15, 1.5), 7400), between(7, 22), between(0.45, 0.7)
        case "stack":
            low, duration = between(350, 900), between(0.18, 0.6)
            high, rate, curve = low * between(1.08, 1.3), between(0.8, 1.5), between(0.6, 1.6)
            harmonics = tuple(0.85**k * float(rng.uniform(0.5, 1.0)) for k in range(int(rng.integers(4, 7))))
        case "pulses":
            low, duration = between(1200, 4500), between(0.25, 1.2)
            high, rate, curve = low * between(1.1, 1.4), between(9, 28), between(0.1, 0.25)
        case "insect":
            low, duration = between(3500, 6300), between(0.8, 3.5)
            high, rate, curve = min(low * between(1.06, 1.25), 7500), between(6, 40), between(0.4, 0.8)
        case "frog":
            low, duration = between(500, 2200), between(0.15, 0.8)
            high, rate, curve = low * between(1.1, 1.35), between(22, 60), between(0.3, 0.6)
            harmonics = (1.0, float(rng.uniform(0.4, 0.9)))
        case "warble":
            low, duration = between(1400, 4000), between(0.35, 1.3)
            high, rate, curve = min(low * between(1.2, 1.6), 7400), between(6, 26), 1.0
        case "phrase":
            low, duration = between(1700, 3600), between(0.5, 1.6)
            high, rate, curve = min(low * between(1.2, 1.5), 6000), between(3.5, 7.0), between(0.5, 2.0)
    return Species(
        name=f"{family}-{index:02d}",
        family=family,
        low_hz=low,
        high_hz=high,
        duration_s=duration,
        rate_hz=rate,
        curve=curve,
        direction=1 if rng.random() < 0.5 else -1,
        harmonics=harmonics,
        syllables=tuple(float(v) for v in np.exp(rng.uniform(-0.22, 0.22, max(2, round(duration * rate))))),
        repeat_s=between(0.5, 4.0),
        calls_per_bout=between(2.0, 6.0),
        pattern=_DIEL_OF_FAMILY[family][int(rng.integers(len(_DIEL_OF_FAMILY[family])))],
        diel_width_h=between(1.5, 4.0),
    )


def render_call(species: Species, sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """One rendition: pitch varies by about 2 %, tempo by 6 %, bandwidth by 8 %."""
    pitch, tempo, width = np.exp(rng.normal(0.0, (0.02, 0.06, 0.08)))
    centre_hz = 0.5 * (species.low_hz + species.high_hz) * pitch
    half_hz = 0.5 * (species.high_hz - species.low_hz) * pitch * width
    low_hz, high_hz = centre_hz - half_hz, min(centre_hz + half_hz, 0.47 * sample_rate_hz)
    duration_s, rate_hz = species.duration_s / tempo, species.rate_hz * tempo
    num_samples = max(int(duration_s * sample_rate_hz), 64)
    u = np.linspace(0.0, 1.0, num_samples, dtype=np.float32)
    time_s = u * np.float32(duration_s)
    span_hz = high_hz - low_hz
    match species.family:
        case "chirp":
            wave = _tone(_sweep(low_hz, high_hz, u, species.curve, species.direction), sample_rate_hz)
            wave *= _hump(u**0.7, 0.5)
        case "arch":
            bend = np.sin(np.pi * u**species.curve)
            wave = _tone(low_hz + span_hz * (bend if species.direction > 0 else 1.0 - bend), sample_rate_hz)
            wave *= _hump(u, 0.5)
        case "trill":
            phase = (time_s * rate_hz) % 1.0
            inside = np.minimum(phase / species.curve, 1.0)
            wave = _tone(_sweep(low_hz, high_hz, inside, 1.0, species.direction), sample_rate_hz)
            wave *= np.sin(np.pi * inside) * np.minimum(1.0, 0.35 + 1.3 * u)
        case "stack":
            contour = low_hz + span_hz * np.sin(np.pi * u**species.curve)
            wave = _harmonic(contour, species.harmonics, sample_rate_hz)
            wave *= _hump(u**0.6, 0.5) * (1.0 + 0.25 * np.sin(2 * np.pi * 11.0 * rate_hz * time_s))
        case "pulses":
            phase = ((time_s * rate_hz) % 1.0) / species.curve
            wave = _tone(
                _sweep(low_hz, high_hz, np.minimum(phase, 1.0), 1.0, species.direction), sample_rate_hz
            )
            wave *= np.where(phase < 1.0, np.sin(np.pi * np.minimum(phase, 1.0)) ** 2, 0.0)
        case "insect":
            wave = _noise_band(num_samples, low_hz, high_hz, sample_rate_hz, rng)
            gate = 0.5 + 0.5 * np.sin(2 * np.pi * rate_hz * time_s)
            wave *= (0.15 + 0.85 * gate) * np.minimum(1.0, 8.0 * np.minimum(u, 1.0 - u) + 0.25)
        case "frog":
            contour = low_hz + span_hz * (u if species.direction > 0 else 1.0 - u)
            gate = np.maximum(np.sin(2 * np.pi * rate_hz * time_s), 0.0) ** (0.5 + species.curve)
            wave = _harmonic(contour, species.harmonics, sample_rate_hz) * gate * _hump(u**0.7, 0.5)
        case "warble":
            bend = 0.5 + 0.5 * np.sin(2 * np.pi * rate_hz * time_s)
            wave = _tone(low_hz + span_hz * bend, sample_rate_hz) * _hump(u, 0.4)
        case "phrase":
            place = u * len(species.syllables) * 0.99999
            which, inside = place.astype(np.int64), np.minimum((place % 1.0) / 0.72, 1.0)
            pitch_of = np.asarray(species.syllables, np.float32)[which]
            turn = np.where(which % 2 == 0, inside, 1.0 - inside) ** species.curve
            wave = _tone((low_hz + span_hz * turn) * pitch_of, sample_rate_hz) * np.sin(np.pi * inside)
    fade = min(int(_FADE_S * sample_rate_hz), num_samples // 4)
    ramp = (0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, fade))).astype(np.float32)
    wave = wave.astype(np.float32)
    wave[:fade] *= ramp
    wave[-fade:] *= ramp[::-1]
    return wave / np.float32(np.abs(wave).max() + 1e-12)


def _hump(u: Waveform, power: float) -> Waveform:
    """Envelope from 0 over 1 to 0; the floor at 0 matters because a float32 sin(pi) is below it."""
    return np.maximum(np.sin(np.pi * u), 0.0) ** power


def _sweep(low_hz: float, high_hz: float, u: Waveform, curve: float, direction: int) -> NDArray[np.floating]:
    """Frequency along a sweep, up or down."""
    way = u if direction > 0 else 1.0 - u
    return low_hz + (high_hz - low_hz) * way**curve


def _tone(frequency_hz: NDArray[np.floating], sample_rate_hz: int) -> Waveform:
    """A sine of varying frequency."""
    phase = np.cumsum(frequency_hz, dtype=np.float64) * (2 * np.pi / sample_rate_hz)
    return np.sin(np.remainder(phase, 2 * np.pi).astype(np.float32))


def _harmonic(
    frequency_hz: NDArray[np.floating], amplitudes: tuple[float, ...], sample_rate_hz: int
) -> Waveform:
    """Multiples of a varying frequency, those near the Nyquist frequency left out."""
    wave = np.zeros(len(frequency_hz), np.float32)
    for k, amplitude in enumerate(amplitudes, start=1):
        if k * float(frequency_hz.max()) < 0.47 * sample_rate_hz:
            wave += np.float32(amplitude) * _tone(k * frequency_hz, sample_rate_hz)
    return wave


def _noise_band(
    num_samples: int, low_hz: float, high_hz: float, sample_rate_hz: int, rng: np.random.Generator
) -> Waveform:
    """Gaussian noise whose band is a smooth bump between two frequencies."""
    padded = 1 << (num_samples - 1).bit_length()
    spectrum = np.zeros(padded // 2 + 1, np.complex64)
    hertz_per_bin = sample_rate_hz / padded
    first, last = int(low_hz / hertz_per_bin), min(int(high_hz / hertz_per_bin) + 1, padded // 2)
    inside = np.sin(np.pi * np.linspace(0.0, 1.0, last - first)) ** 0.5
    noise = rng.standard_normal((2, last - first))
    spectrum[first:last] = (noise[0] + 1j * noise[1]) * inside
    return np.fft.irfft(spectrum, padded)[:num_samples].astype(np.float32)
