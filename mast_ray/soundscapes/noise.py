"""What is heard besides animals: noise of a given spectrum, weather, and passing
distractors that nobody labels.

Waveforms are mono float32; every function is handed its generator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mast_ray.soundscapes.calls import Waveform

DENSITY_POINTS = 1025
_SMOOTH_S = 0.5  # noise is made in multiples of this, which keeps FFT sizes friendly


def density_grid_hz(sample_rate_hz: int) -> NDArray[np.float64]:
    """Frequencies at which power densities are tabulated."""
    return np.linspace(0.0, 0.5 * sample_rate_hz, DENSITY_POINTS)


def noise_of_density(
    density: NDArray[np.floating], num_samples: int, sample_rate_hz: int, rng: np.random.Generator
) -> Waveform:
    """Gaussian noise with a one-sided power density tabulated on density_grid_hz."""
    unit = int(_SMOOTH_S * sample_rate_hz)
    padded = -(-num_samples // unit) * unit
    num_bins = padded // 2 + 1
    amplitude = np.sqrt(density * (0.25 * sample_rate_hz * padded)).astype(np.float32)
    place = np.linspace(0.0, DENSITY_POINTS - 1.0, num_bins, dtype=np.float32)
    spectrum = rng.standard_normal(2 * num_bins, np.float32).view(np.complex64)
    spectrum *= np.interp(place, np.arange(DENSITY_POINTS, dtype=np.float32), amplitude).astype(np.float32)
    spectrum[0] = 0.0
    return np.fft.irfft(spectrum, padded)[:num_samples].astype(np.float32, copy=False)


def slow_curve(num_samples: int, sample_rate_hz: int, step_s: float, rng: np.random.Generator) -> Waveform:
    """A random curve of unit variance that changes over about `step_s`."""
    knots = rng.standard_normal(int(num_samples / sample_rate_hz / step_s) + 3)
    return np.interp(
        np.arange(num_samples) / (sample_rate_hz * step_s), np.arange(len(knots)), knots
    ).astype(np.float32)  # fmt: skip


def wind_noise(strength: float, num_samples: int, sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """Low rumble in gusts."""
    f = np.maximum(density_grid_hz(sample_rate_hz), 20.0)
    density = 4e-5 * strength**2 / f / (1.0 + (f / 160.0) ** 2.2)
    gusts = np.exp(0.8 * slow_curve(num_samples, sample_rate_hz, 2.5, rng) - 0.3)
    return noise_of_density(density, num_samples, sample_rate_hz, rng) * gusts


def rain_noise(strength: float, num_samples: int, sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """A broad hiss and drops that hit something near the microphone."""
    f = np.maximum(density_grid_hz(sample_rate_hz), 20.0)
    density = 4.8e-8 * strength**2 / (1.0 + (700.0 / f) ** 2) / (1.0 + (f / 6000.0) ** 2)
    swell = np.exp(0.2 * slow_curve(num_samples, sample_rate_hz, 4.0, rng))
    rain = noise_of_density(density, num_samples, sample_rate_hz, rng) * swell
    drops = [_click(sample_rate_hz, float(rng.uniform(600, 5000)), 0.006, rng) for _ in range(12)]
    for _ in range(int(rng.poisson(7.0 * strength * num_samples / sample_rate_hz))):
        drop = drops[int(rng.integers(len(drops)))]
        at = int(rng.integers(0, max(num_samples - len(drop), 1)))
        rain[at : at + len(drop)] += drop[: num_samples - at] * np.float32(10.0 ** rng.uniform(-2.6, -1.4))
    return rain


def distractor(kind: str, sample_rate_hz: int, rng: np.random.Generator) -> Waveform:
    """One passing noise that is not an animal, peak about 1."""
    rate = sample_rate_hz
    match kind:
        case "thunder":
            n = int(rng.uniform(3.0, 8.0) * rate)
            f = np.maximum(density_grid_hz(rate), 10.0)
            wave = noise_of_density(1.0 / (1.0 + (f / 90.0) ** 3), n, rate, rng)
            wave *= np.exp(1.2 * slow_curve(n, rate, 0.25, rng)) * _swell(n, 0.08)
        case "engine":
            n = int(rng.uniform(8.0, 22.0) * rate)
            turn_hz = rng.uniform(28, 70) * (1.0 - 0.12 * np.linspace(-1, 1, n) ** 3)
            wave = _buzz(turn_hz, rate, [1.0 / k for k in range(1, 9)]) * _swell(n, 0.5)
            wave += 0.5 * _band(n, rate, 60.0, 900.0, rng) * _swell(n, 0.5)
        case "chainsaw":
            n = int(rng.uniform(2.5, 7.0) * rate)
            turn_hz = rng.uniform(90, 150) * np.exp(0.06 * slow_curve(n, rate, 0.6, rng))
            wave = _buzz(turn_hz, rate, [rng.uniform(0.3, 1.0) / k**0.4 for k in range(1, 17)]) * _swell(
                n, 0.3
            )
            wave += 0.6 * _band(n, rate, 500.0, 4000.0, rng) * _swell(n, 0.3)
        case "aircraft":
            n = int(rng.uniform(15.0, 28.0) * rate)
            wave = _band(n, rate, 40.0, float(rng.uniform(300, 900)), rng) * _swell(n, 0.5) ** 2
        case "clicks" | "footsteps":
            steps = int(rng.integers(4, 14))
            gap_s = float(rng.uniform(0.45, 0.65) if kind == "footsteps" else rng.uniform(0.1, 1.2))
            n = int((steps + 1) * gap_s * rate) + rate // 4
            wave = np.zeros(n, np.float32)
            for k in range(steps):
                length_s = float(
                    rng.uniform(0.03, 0.07) if kind == "footsteps" else rng.uniform(0.004, 0.012)
                )
                click = _click(
                    rate, float(rng.uniform(250, 900) if kind == "footsteps" else 2500), length_s, rng
                )
                at = int((k + 0.5 + rng.uniform(-0.1, 0.1)) * gap_s * rate)
                wave[at : at + len(click)] += click[: n - at] * np.float32(rng.uniform(0.5, 1.0))
        case _:
            raise ValueError(f"no distractor is called {kind}")
    return (wave / (np.abs(wave).max() + 1e-12)).astype(np.float32)


def _click(rate: int, centre_hz: float, length_s: float, rng: np.random.Generator) -> Waveform:
    """A short burst: noise through a decaying resonance."""
    n = max(int(5.0 * length_s * rate), 16)
    decay = np.exp(-np.arange(n) / (length_s * rate))
    tone = np.sin(2 * np.pi * centre_hz * np.arange(n) / rate)
    return ((0.5 * tone + 0.5 * rng.standard_normal(n)) * decay).astype(np.float32)


def _buzz(turn_hz: NDArray[np.floating], rate: int, amplitudes: list[float]) -> Waveform:
    """Harmonics of a turning speed by Chebyshev recurrence: one sine and one cosine for all of them."""
    phase = np.remainder(np.cumsum(turn_hz, dtype=np.float64) * (2 * np.pi / rate), 2 * np.pi).astype(
        np.float32
    )
    previous, current, twice_cosine = np.zeros_like(phase), np.sin(phase), 2.0 * np.cos(phase)
    wave = np.zeros_like(phase)
    for amplitude in amplitudes:
        wave += np.float32(amplitude) * current
        previous, current = current, twice_cosine * current - previous
    return wave


def _band(n: int, rate: int, low_hz: float, high_hz: float, rng: np.random.Generator) -> Waveform:
    """Noise of about unit power between two soft edges."""
    f = np.maximum(density_grid_hz(rate), 1.0)
    return noise_of_density(
        1.0 / high_hz / (1.0 + (low_hz / f) ** 4) / (1.0 + (f / high_hz) ** 4), n, rate, rng
    )


def _swell(n: int, peak: float) -> Waveform:
    """From 0 up to 1 at the relative place `peak` and back."""
    u = np.linspace(0.0, 1.0, n, dtype=np.float32)
    return np.where(
        u < peak, np.sin(0.5 * np.pi * u / peak), np.cos(0.5 * np.pi * (u - peak) / (1.0 - peak)) ** 2
    )
