"""What a synthetic archive holds: its knobs, and the list of recordings they lead to.

Site and temporal shift are numbers: 0 none, 1 the default, more is harder. Times of day are local.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from mast_ray.config.errors import ConfigError

# labelled: what the expert went through for training; the two OOD roles are fully
# annotated, for evaluation only. ood_dev: a few annotated recordings of further sites, to choose models by; site_pool: other,
# unlabelled days of a held-out site, what the user of a new site has at once.
Role = Literal["labelled", "temporal_ood", "site_ood", "ood_dev", "site_pool", "pool"]
SampleRate = Literal[16_000, 24_000, 32_000, 48_000]
DAY_S = 86_400


@dataclass(frozen=True)
class SoundscapeSpec:
    """Every knob of an archive; equal specs give equal bytes."""

    num_sites: int = 4
    num_days: int = 4
    recordings_per_day: int = 4  # at each site
    labelled_recordings_per_day: int | None = (
        None  # on a labelled day at a labelled site; None: as any other day
    )
    hours_of_day: tuple[float, ...] = ()  # start hours; empty: evenly over 24 h
    recording_s: float = 60.0
    seed: int = 0
    # what is annotated: the first sites on the first days, all of the last sites,
    # the first sites on the last days
    num_labelled_sites: int = 1
    num_labelled_days: int = 1
    num_held_out_sites: int = 1
    num_held_out_days: int = 1
    # sites before the held-out ones, recorded and annotated on the labelled days only: for the choice of models
    num_dev_sites: int = 0
    # last days of held-out sites that are annotated; the days before are not recorded there. 0: every day is annotated
    num_test_days: int = 0
    # of the last of the held-out sites the days before are recorded too, unlabelled
    num_site_pool_sites: int = 0
    # what is heard
    density_per_min: float = 14.0  # calls, averaged over 24 h
    snr_db: float = 14.0  # call over background inside the box: mean over bouts
    snr_spread_db: float = 6.0
    min_snr_db: float = 3.0  # fainter ones are not rendered, so that nothing audible is unlabelled
    distractors_per_min: float = 0.8  # engines, thunder, clicks, ...: never labelled
    site_shift: float = 1.0
    temporal_shift: float = 1.0
    num_species: int = 27
    species_per_site: int = 14
    species_overlap: float = 0.5  # share of a site's species that every site has, at site_shift 1
    # how it is written
    sample_rates_hz: tuple[SampleRate, ...] = (16_000,)  # given to the sites in turn
    audio_format: Literal["wav", "flac"] = "wav"
    first_date: str = "2024-05-06"
    days_apart: int = 7
    timezone: str = "Europe/Madrid"
    # real sound instead of formulas: folders with recordings.csv tables
    clips_dir: str | None = None
    scenes_dir: str | None = None
    # which roles never share a source: see sources.py
    source_groups: Literal["none", "site", "site_and_date", "four_ways"] = "site_and_date"

    def __post_init__(self) -> None:
        cell = max(self.recordings_per_day, self.labelled_recordings_per_day or 0)
        if cell * self.recording_s > DAY_S:
            raise ConfigError(
                f"{cell} recordings of {self.recording_s:g} s do not fit into one day at one site:\n"
                "take more sites, more days or fewer hours, e.g. mast synth --days 8"
            )
        least_sites = self.num_labelled_sites + self.num_dev_sites + self.num_held_out_sites
        if self.num_sites < least_sites:
            development = f"{self.num_dev_sites} development and " if self.num_dev_sites else ""
            raise ConfigError(
                f"--sites {self.num_sites} leaves no room for {self.num_labelled_sites} labelled and "
                f"{development}{self.num_held_out_sites} held-out sites:\ntake at least --sites {least_sites}"
            )
        if self.num_site_pool_sites > self.num_held_out_sites or (
            self.num_site_pool_sites and not 0 < self.num_test_days < self.num_days
        ):
            raise ConfigError(
                "unlabelled days of held-out sites need held-out sites, and days that are not tested:\n"
                "take e.g. --unseen-sites 2 --unseen-pool-sites 1 --test-days 2 --days 6"
            )
        if self.source_groups == "four_ways" and self.num_held_out_sites < 1:
            raise ConfigError("--sources four-ways needs at least one held-out site: take --unseen-sites 2")
        if self.num_days < self.num_labelled_days + self.num_held_out_days:
            raise ConfigError(
                f"--days {self.num_days} leaves no room for {self.num_labelled_days} labelled and "
                f"{self.num_held_out_days} held-out days:\ntake at least "
                f"--days {self.num_labelled_days + self.num_held_out_days}"
            )
        if self.species_per_site > self.num_species:
            raise ConfigError(
                f"--species-per-site {self.species_per_site} is more than the {self.num_species} species there are: "
                f"take at most {self.num_species}"
            )
        if (
            min(self.recording_s, self.recordings_per_day, self.density_per_min + 1) <= 0
            or self.recording_s < 1
        ):
            raise ConfigError(
                f"{self.recordings_per_day} recordings a day of {self.recording_s:g} s are no archive: "
                "every day needs one of at least a second\ntake more --minutes or --hours"
            )


@dataclass(frozen=True)
class RecordingPlan:
    """One recording to be rendered; everything about it follows from the spec and these indices."""

    spec: SoundscapeSpec
    site_index: int
    day_index: int
    start_second: int  # of the local day
    role: Role

    @property
    def site_name(self) -> str:
        return site_name(self.site_index)

    @property
    def start_time(self) -> datetime:
        """Local start with its offset."""
        day = date.fromisoformat(self.spec.first_date) + timedelta(self.day_index * self.spec.days_apart)
        midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(self.spec.timezone))
        return midnight + timedelta(seconds=self.start_second)

    @property
    def path(self) -> str:
        """Relative to the archive, forward slashes; site and time can be read from the name."""
        stem = f"{self.site_name}_{self.start_time:%Y%m%d_%H%M%S}"
        return f"audio/{self.site_name}/{stem}.{self.spec.audio_format}"

    @property
    def is_annotated(self) -> bool:
        return self.role not in ("pool", "site_pool")

    @property
    def sample_rate_hz(self) -> int:
        return self.spec.sample_rates_hz[self.site_index % len(self.spec.sample_rates_hz)]

    @property
    def num_samples(self) -> int:
        return round(self.spec.recording_s * self.sample_rate_hz)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Entropy of this recording and no other."""
        return (self.spec.seed, 7, self.site_index, self.day_index, self.start_second)


def plan_archive(spec: SoundscapeSpec) -> list[RecordingPlan]:
    """All recordings, site by site and in order of time."""
    plans = []
    for site_index in range(spec.num_sites):
        for day_index in range(spec.num_days):
            role = _role(spec, site_index, day_index)
            if role is None:
                continue
            count = spec.recordings_per_day
            if role == "labelled" and spec.labelled_recordings_per_day is not None:
                count = spec.labelled_recordings_per_day
            plans += [
                RecordingPlan(spec, site_index, day_index, second, role)
                for second in _start_seconds(spec, count)
            ]
    return plans


def spec_for_hours(hours: float, spec: SoundscapeSpec, labelled_share: float = 0.25) -> SoundscapeSpec:
    """The spec whose recordings sum up to `hours`, at least a stated share of them on the labelled day(s).

    Every site is recorded at least once a day, so a very small archive can come out a little longer.
    """
    total = max(math.ceil(hours * 3600.0 / spec.recording_s - 1e-9), 1)
    labelled_cells = spec.num_labelled_sites * spec.num_labelled_days
    cells = [_role(spec, site, day) for site in range(spec.num_sites) for day in range(spec.num_days)]
    other_cells = sum(role is not None for role in cells) - labelled_cells
    others = max(int((1.0 - labelled_share) * total / max(other_cells, 1) + 1e-9), 1)
    labelled = max(math.ceil((total - others * other_cells) / labelled_cells), others)
    return replace(spec, recordings_per_day=others, labelled_recordings_per_day=labelled)


def site_name(site_index: int) -> str:
    return f"SITE{site_index + 1:02d}"


def site_role(spec: SoundscapeSpec, site_index: int) -> Role:
    """What a site is there for: labelled and later dates, the pool, the choice of models, or the test."""
    first_held_out = spec.num_sites - spec.num_held_out_sites
    if site_index >= first_held_out:
        return "site_ood"
    if site_index >= first_held_out - spec.num_dev_sites:
        return "ood_dev"
    return "labelled" if site_index < spec.num_labelled_sites else "pool"


def _role(spec: SoundscapeSpec, site_index: int, day_index: int) -> Role | None:
    """What a day at a site is there for; None: nothing was recorded."""
    match site_role(spec, site_index):
        case "site_ood":
            if not spec.num_test_days or day_index >= spec.num_days - spec.num_test_days:
                return "site_ood"
            return "site_pool" if site_index >= spec.num_sites - spec.num_site_pool_sites else None
        case "ood_dev":
            return "ood_dev" if day_index < spec.num_labelled_days else None
        case "labelled" if day_index < spec.num_labelled_days:
            return "labelled"
        case "labelled" if day_index >= spec.num_days - spec.num_held_out_days:
            return "temporal_ood"
        case _:
            return "pool"


def _start_seconds(spec: SoundscapeSpec, count: int) -> list[int]:
    """Start seconds of the day; evenly spread ones begin at 05:30, so that a few
    still meet the dawn chorus.
    """
    if spec.hours_of_day:
        per_hour = math.ceil(count / len(spec.hours_of_day))
        step = max(math.ceil(spec.recording_s), 3600 // max(per_hour, 1))
        starts = [round(hour * 3600) + k * step for k in range(per_hour) for hour in spec.hours_of_day][
            :count
        ]
        return sorted(start % DAY_S for start in starts)
    unit = 60 if count * 60 * math.ceil(spec.recording_s / 60) <= DAY_S else 1
    step = DAY_S // count // unit * unit
    return sorted((5 * 3600 + 1800 + k * step) % DAY_S for k in range(count))
