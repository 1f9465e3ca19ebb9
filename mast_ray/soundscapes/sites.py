"""Places and days of a synthetic world: what a site sounds like at rest, and how days differ.

Levels are decibels relative to full scale; spectra are one-sided power densities on a grid of frequencies.
A shift of 0 makes all sites (all days) the same place (the same day); deviations grow in proportion to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mast_ray.soundscapes.calls import Species, draw_species
from mast_ray.soundscapes.plan import SoundscapeSpec, site_name
from mast_ray.soundscapes.sources import can_live_at

Spectrum = NDArray[np.floating]
DISTRACTORS = ("thunder", "engine", "chainsaw", "aircraft", "clicks", "footsteps")


@dataclass(frozen=True)
class Site:
    """Background, recorder and species pool of one place."""

    name: str
    latitude: float
    longitude: float
    sample_rate_hz: int
    # background
    level_db: float
    slope: float  # of the coloured noise: density falls as f^-slope
    stream_hz: float
    stream_db: float  # over the coloured noise
    hum_hz: float
    hum_db: float
    hum_width_hz: float
    # recorder
    gain_db: float
    floor_db: float
    highpass_hz: float
    tilt_db: float  # per octave around 2 kHz
    peak_hz: float
    peak_db: float
    # reverberation
    decay_s: float
    wet_db: float
    # what lives and passes here
    density: float
    abundance: tuple[float, ...]  # of every species of the world; 0 where it does not live
    distractor_share: tuple[float, ...]  # in the order of DISTRACTORS


@dataclass(frozen=True)
class Day:
    """How one day differs from the first."""

    level_db: float
    slope: float
    hum_db: float
    hum_ratio: float
    activity: tuple[float, ...]  # of every species
    rain: tuple[tuple[float, float, float], ...]  # (start hour, end hour, strength 0..1)
    wind: float  # strength 0..1 of the afternoon peak

    def rain_at(self, hour: float) -> float:
        """Strength of rain, rising and falling over six minutes."""
        edges = [min(hour - start, end - hour) / 0.1 for start, end, _ in self.rain]
        return max(
            (s * min(max(e, 0.0), 1.0) for e, (_, _, s) in zip(edges, self.rain, strict=True)), default=0.0
        )

    def wind_at(self, hour: float) -> float:
        return self.wind * (0.25 + 0.75 * float(np.exp(-0.5 * ((hour - 15.0) / 3.5) ** 2)))


@lru_cache(maxsize=64)
def species_of(spec: SoundscapeSpec) -> tuple[Species, ...]:
    """All species of a world."""
    return tuple(draw_species(spec.seed, index) for index in range(spec.num_species))


@lru_cache(maxsize=4096)
def draw_site(spec: SoundscapeSpec, index: int) -> Site:
    """Site `index`; its parameters do not depend on how many sites there are."""
    rng = np.random.default_rng([spec.seed, 1, index])
    shift = spec.site_shift
    deviation = iter(shift * np.clip(rng.standard_normal(32), -2.0, 2.0))

    def around(value: float, scale: float) -> float:
        return value + scale * float(next(deviation))

    def times(value: float, scale: float) -> float:
        return value * float(np.exp(scale * float(next(deviation))))

    overlap = float(np.clip(1.0 - shift * (1.0 - spec.species_overlap), 0.0, 1.0))
    shared = np.random.default_rng([spec.seed, 2]).permutation(spec.num_species)
    shared = shared[np.array(can_live_at(spec, index), bool)[shared]]
    num_shared = round(overlap * spec.species_per_site)
    own = rng.permutation(shared[num_shared:])[: spec.species_per_site - num_shared]
    abundance = np.zeros(spec.num_species)
    abundance[shared[:num_shared]] = 1.0
    abundance[own] = 1.0
    abundance *= np.exp(0.5 * shift * rng.standard_normal(spec.num_species))
    distractors = np.exp(0.8 * shift * rng.standard_normal(len(DISTRACTORS)))
    return Site(
        name=site_name(index),
        latitude=37.0 + 0.05 * float(rng.uniform(-1, 1)) + 0.02 * index,
        longitude=-6.5 + 0.05 * float(rng.uniform(-1, 1)),
        sample_rate_hz=spec.sample_rates_hz[index % len(spec.sample_rates_hz)],
        level_db=around(-46.0, 3.0),
        slope=around(1.6, 0.25),
        stream_hz=times(700.0, 0.4),
        stream_db=around(-3.0, 7.0),
        hum_hz=min(times(4600.0, 0.22), 7300.0),
        hum_db=around(5.0, 6.0),
        hum_width_hz=times(180.0, 0.3),
        gain_db=around(0.0, 5.0),
        floor_db=around(-74.0, 4.0),
        highpass_hz=times(90.0, 0.5),
        tilt_db=around(0.0, 1.5),
        peak_hz=times(3000.0, 0.4),
        peak_db=around(0.0, 3.0),
        decay_s=times(0.25, 0.4),
        wet_db=min(around(-17.0, 4.0), -9.0),
        density=times(1.0, 0.2),
        abundance=tuple(float(v) for v in abundance),
        distractor_share=tuple(float(v) for v in distractors / distractors.sum()),
    )


@lru_cache(maxsize=4096)
def draw_day(spec: SoundscapeSpec, index: int) -> Day:
    """Day `index`; the first is the reference, later ones drift away from it with the season."""
    shift = spec.temporal_shift
    drift = shift * min(0.5 + index * spec.days_apart / 30.0, 1.5) if index > 0 else 0.0
    rng = np.random.default_rng([spec.seed, 3, index if shift > 0 else 0])
    z = np.clip(rng.standard_normal(4), -2.0, 2.0)
    activity = np.exp(0.7 * drift * rng.standard_normal(spec.num_species))
    num_showers = int(rng.poisson(0.5 + 0.7 * drift))
    showers = [(float(rng.uniform(0, 23)), float(rng.uniform(0.3, 3.0)), float(rng.uniform(0.2, 1.0)))
               for _ in range(num_showers)]  # fmt: skip
    return Day(
        level_db=2.0 * drift * float(z[0]),
        slope=0.12 * drift * float(z[1]),
        hum_db=3.0 * drift * float(z[2]),
        hum_ratio=float(np.exp(0.08 * drift * z[3])),  # insects follow the temperature
        activity=tuple(float(v) for v in activity),
        rain=tuple((start, start + length, strength) for start, length, strength in showers),
        wind=float(np.clip(rng.uniform(0.1, 0.5) + 0.3 * drift * rng.uniform(-0.3, 1.0), 0.0, 1.0)),
    )


def response(site: Site, frequency_hz: Spectrum) -> Spectrum:
    """Amplitude response of the recorder, gain included."""
    f = np.maximum(frequency_hz, 1.0)
    octaves = np.clip(np.log2(f / 2000.0), -4.0, 2.5)
    peak = site.peak_db * np.exp(-0.5 * (np.log2(f / site.peak_hz) / 0.5) ** 2)
    highpass = 1.0 / np.sqrt(1.0 + (site.highpass_hz / f) ** 4)
    return highpass * 10.0 ** ((site.gain_db + site.tilt_db * octaves + peak) / 20.0)


def background_density(site: Site, day: Day, hour: float, frequency_hz: Spectrum) -> Spectrum:
    """Power per hertz of the calm background at an hour, as the recorder writes it."""
    f = np.maximum(frequency_hz, 30.0)
    coloured = f ** -(site.slope + day.slope)
    coloured *= 10.0 ** ((site.level_db + day.level_db) / 10.0) / _band_power(site.slope + day.slope)
    reference = np.interp(site.stream_hz, frequency_hz, coloured)
    stream = (
        reference * 10.0 ** (site.stream_db / 10.0) * np.exp(-0.5 * (np.log2(f / site.stream_hz) / 0.6) ** 2)
    )
    hum_hz = min(site.hum_hz * day.hum_ratio, 7600.0)
    night = 0.5 + 0.5 * np.cos((hour - 0.5) * np.pi / 12.0)
    hum_level = 10.0 ** ((site.hum_db + day.hum_db) / 10.0) * night**2
    hum = np.interp(hum_hz, frequency_hz, coloured) * hum_level
    hum = hum * np.exp(-0.5 * ((f - hum_hz) / site.hum_width_hz) ** 2)
    floor = 10.0 ** (site.floor_db / 10.0) / 8000.0
    return (coloured + stream + hum) * response(site, frequency_hz) ** 2 + floor


def impulse_response(site: Site, seed: int) -> NDArray[np.float32]:
    """Direct sound followed by decaying noise whose energy is `wet_db` below it."""
    num_samples = int(min(site.decay_s, 0.6) * site.sample_rate_hz)
    rng = np.random.default_rng([seed, 4, int(site.name[4:])])
    tail = rng.standard_normal(num_samples) * np.exp(-6.9 * np.arange(num_samples) / num_samples)
    tail[: int(0.004 * site.sample_rate_hz)] = 0.0
    tail *= 10.0 ** (site.wet_db / 20.0) / np.sqrt(np.square(tail).sum())
    tail[0] = 1.0
    return tail.astype(np.float32)


def _band_power(slope: float) -> float:
    """Integral of f^-slope over 100..8000 Hz."""
    f = np.linspace(100.0, 8000.0, 2000)
    return float(np.trapezoid(f**-slope, f))
