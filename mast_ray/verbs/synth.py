"""`mast synth`: write a labelled synthetic soundscape archive (audio, Raven tables, metadata, truth)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from mast_ray.config.errors import ConfigError
from mast_ray.soundscapes.archive import ArchiveSummary, write_archive
from mast_ray.soundscapes.clips import read_clips
from mast_ray.soundscapes.damage import damage_archive
from mast_ray.soundscapes.plan import SoundscapeSpec, spec_for_hours
from mast_ray.verbs.idle_options import refuse_idle

HELP = "write a labelled synthetic soundscape archive"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = SoundscapeSpec()
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder to write (re-running skips what is there)",
    )
    add("--hours", type=float, default=1.0, help="hours of audio in all (default 1)")
    add(
        "--sites",
        type=int,
        default=default.num_sites,
        help="number of sites, the last held out (default 4)",
    )
    add("--unseen-sites", type=int, default=1, metavar="N", help="held-out sites, the last ones (default 1)")
    add("--dev-sites", type=int, default=0, metavar="N",
        help="sites before them with a few labels, for the choice of models (default 0)")  # fmt: skip
    add("--test-days", type=int, default=0, metavar="N",
        help="last days that held-out sites are recorded and annotated on (default 0: every day)")  # fmt: skip
    add("--unseen-pool-sites", type=int, default=0, metavar="N",
        help="held-out sites whose days before are recorded too, unlabelled (default 0)")  # fmt: skip
    add("--days", type=int, default=default.num_days, help="recorded days, the last is held out (default 4)")
    add("--minutes", type=float, default=1.0, help="minutes per recording (default 1)")
    add(
        "--labelled-share",
        type=float,
        default=0.25,
        help="share of the hours on the labelled day (default 0.25)",
    )
    add("--seed", type=int, default=0, help="same seed and settings: same bytes")
    add(
        "--density",
        type=float,
        default=default.density_per_min,
        help="calls per minute, mean of 24 h (default 14)",
    )
    add(
        "--snr-db",
        type=float,
        default=default.snr_db,
        help="mean of call over background in its box (default 14)",
    )
    add(
        "--site-shift",
        type=float,
        default=1.0,
        help="how much sites differ: 0 none, 1 default, more is harder",
    )
    add(
        "--temporal-shift",
        type=float,
        default=1.0,
        help="how much days differ: 0 none, 1 default, more is harder",
    )
    add(
        "--clips-dir",
        metavar="DIR",
        help="cut calls from real clips (folders with recordings.csv), not formulas",
    )
    add("--scenes-dir", metavar="DIR", help="backgrounds from real scenes (folders with recordings.csv)")
    add("--sources", choices=("three-ways", "four-ways"), default="three-ways",
        help="how real sources are dealt: labelled and pool alike, dates, sites; or labelled, pool only, dates, each unseen site "
             "its own, with all labels of the clips and scenes of its own for every site")  # fmt: skip
    add("--species-per-site", type=int, default=0, metavar="N",
        help="species that live at a site (default 14, four ways 70)")  # fmt: skip
    add("--format", choices=("wav", "flac"), default="wav", help="audio format (default wav)")
    add("--sample-rate", type=int, nargs="+", choices=(16_000, 24_000, 32_000, 48_000), default=[16_000],
        metavar="HZ", help="16000, 24000, 32000 or 48000; several are given to the sites in turn")  # fmt: skip
    add(
        "--damage",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of recordings to damage (see damaged.csv)",
    )
    add(
        "--processes", type=int, default=os.cpu_count() or 1, help="processes (the bytes do not depend on it)"
    )


def run(args: argparse.Namespace) -> int:
    for name in ("hours", "sites", "days", "minutes"):
        if not 0 < getattr(args, name) < float("inf"):
            raise ConfigError(
                f"--{name} {getattr(args, name):g} makes an archive of nothing: give a positive number"
            )
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: give a whole number from 0 on")
    for name, most in (
        ("density", 10_000.0),
        ("snr_db", 100.0),
        ("site_shift", 100.0),
        ("temporal_shift", 100.0),
    ):
        if not (-most if name == "snr_db" else 0.0) <= getattr(args, name) <= most:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(args, name):g} makes no sound: give a number of at most {most:g}"
            )
    for name in ("damage", "labelled_share"):
        if not 0 <= getattr(args, name) <= 1:
            option = name.replace("_", "-")
            raise ConfigError(
                f"--{option} {getattr(args, name):g} is no share: give a number between 0 and 1, e.g. 0.05"
            )
    if args.sites == 1 and args.unseen_sites:
        refuse_idle(args, ("unseen_sites",), "one site cannot be held out, take --sites 2 or more")
    spec = spec_for_hours(
        args.hours,
        SoundscapeSpec(
            num_sites=args.sites,
            num_days=args.days,
            num_held_out_sites=args.unseen_sites if args.sites > 1 else 0,
            num_dev_sites=args.dev_sites,
            num_test_days=args.test_days,
            num_site_pool_sites=args.unseen_pool_sites,
            num_held_out_days=1 if args.days > 1 else 0,
            recordings_per_day=1,
            recording_s=args.minutes * 60.0,
            seed=args.seed,
            density_per_min=args.density,
            snr_db=args.snr_db,
            site_shift=args.site_shift,
            temporal_shift=args.temporal_shift,
            clips_dir=args.clips_dir,
            scenes_dir=args.scenes_dir,
            audio_format=args.format,
            sample_rates_hz=tuple(args.sample_rate),
            **_dealing(args),
        ),
        args.labelled_share,
    )
    started = time.monotonic()
    summary = write_archive(spec, args.out, _progress(spec.recording_s), args.processes)
    _print_summary(summary, time.monotonic() - started)
    if args.damage > 0:
        damaged = damage_archive(args.out, args.damage, args.seed)
        print(
            f"  damaged on purpose: {len(damaged)} recordings in {len({k for _, k in damaged})} ways (damaged.csv)"
        )
    return 0


def _dealing(args: argparse.Namespace) -> dict[str, Any]:
    """How sources are dealt, and how many species that makes."""
    if args.sources == "three-ways":
        return {"species_per_site": args.species_per_site or SoundscapeSpec().species_per_site}
    if not args.clips_dir:
        raise ConfigError("--sources four-ways deals real clips: give --clips-dir DIR")
    num_species = len({clip.label for clip in read_clips(args.clips_dir)})
    return {
        "source_groups": "four_ways",
        "num_species": num_species,
        "species_per_site": min(args.species_per_site or 70, num_species),
    }


def _progress(recording_s: float):
    """A line that rewrites itself on a terminal, and one line per tenth elsewhere."""
    started, last_tenth = time.monotonic(), -1

    def show(done: int, total: int) -> None:
        nonlocal last_tenth
        tenth = 10 * done // max(total, 1)
        spent_s = time.monotonic() - started
        text = f"synth: {done} of {total} recordings, {done * recording_s / 3600:.2f} h, {spent_s:.0f} s"
        if sys.stderr.isatty():
            print(f"\r{text}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif tenth != last_tenth:
            print(text, file=sys.stderr, flush=True)
        last_tenth = tenth

    return show


def _print_summary(summary: ArchiveSummary, spent_s: float) -> None:
    hours, events = sum(summary.hours_by_site.values()), sum(summary.events_by_site.values())
    if summary.num_skipped:
        print(f"{summary.num_skipped} recordings were there already, {summary.num_written} were written")
    print(
        f"{summary.out_dir}: {hours:.2f} h, {events} events, {len(summary.hours_by_site)} sites, {spent_s:.1f} s"
    )
    for site, site_hours in summary.hours_by_site.items():
        print(f"  {site}: {site_hours:.2f} h, {summary.events_by_site[site]} events")
    meaning = {
        "labelled": "labelled for training",
        "temporal_ood": "held-out dates, annotated",
        "site_ood": "held-out sites, annotated",
        "ood_dev": "development sites, annotated",
        "site_pool": "held-out sites, other days, unlabelled",
        "pool": "unlabelled pool",
    }
    for role, text in meaning.items():
        if role in summary.hours_by_role:
            print(f"  {text}: {summary.hours_by_role[role]:.2f} h, {summary.events_by_role[role]} events")
