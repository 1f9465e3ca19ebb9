"""`mast prepare`: an archive of recordings becomes a prepared folder. Run again, it goes on
where it was, or has nothing to do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from mast_ray.config.errors import OK, PARTIAL
from mast_ray.config.shown import shown
from mast_ray.config.tree import Config
from mast_ray.recordings.annotations.formats.yolo import ImageScale
from mast_ray.recordings.annotations.model import AnnotationSet
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.recordings.decoding.faults import cancelling_text, reasons_line
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ
from mast_ray.stages.runner import ON_RAY, Runner, work_off
from mast_ray.storage.outputs import is_whole, mend, refuse_mixing, remove_leftovers
from mast_ray.storage.spread import Spread
from mast_ray.storage.stage_folders import (
    SCHEMA_VERSION,
    sections_hash,
    text_hash,
)
from mast_ray.storage.stage_run import StageRun, done_before, refuse_foreign, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.units import (
    Item,
    Unit,
    archive_hash,
    forget_passing,
    pending_units,
    plan_units,
    read_commits,
    tally,
)
from mast_ray.tables.dealing.silent import silence_text, silent_splits
from mast_ray.tables.labels.choice import ChosenLabels, chosen_labels, refuse_no_calls
from mast_ray.tables.labels.matching import AnnotationSource, annotations_hash, annotations_of, refuse_unknown
from mast_ray.tables.prepared import read_table
from mast_ray.tables.preparing.birdeep import birdeep_labels
from mast_ray.tables.preparing.birdset import birdset_archive, birdset_labels
from mast_ray.tables.preparing.finishing import DECODE_KNOBS, SEALED, TABLE_KNOBS, SplitSummary, finish
from mast_ray.tables.preparing.held_out import refuse_absent
from mast_ray.tables.preparing.inventory import (
    SYNTHETIC_COPIES,
    Listing,
    inventory_lines,
    list_archive,
    take_inventory,
)
from mast_ray.tables.preparing.site_table import site_by_name, site_table_of, versions_with_rows
from mast_ray.tables.preparing.unit_work import PrepareWork

log = logging.getLogger(__name__)
STAGE = "prepare"
SAMPLED_HEADERS = 200


@dataclass(frozen=True)
class PrepareInputs:
    """Where everything comes from and goes to."""

    archive: str
    out: str
    annotations: str = ""
    table: str = ""
    exclude: tuple[str, ...] = SYNTHETIC_COPIES
    dataset: Literal["plain", "birdeep", "birdset"] = "plain"
    columns: tuple[tuple[str, str], ...] = ()
    listened: str = ""
    skip_missing: bool = False
    image_scale: ImageScale | None = None
    group_column: str = ""  # of the table
    verify: bool = False  # read every file of an earlier run, and do again what was changed
    only: frozenset[str] = frozenset()  # paths of the recordings that are wanted; empty: all

    @property
    def labels(self) -> AnnotationSource:
        return AnnotationSource(
            self.annotations, self.columns, self.listened, self.skip_missing, self.image_scale
        )


def prepare(
    inputs: PrepareInputs,
    config: Config,
    *,
    runner: Runner = ON_RAY,
    dry_run: bool = False,
    given: AnnotationSet | None = None,
) -> int:
    """Inventory, units, tables; returns the exit code. Annotations are read from files, or `given`."""
    archive, stage = open_storage(inputs.archive, config.storage), open_storage(inputs.out, config.storage)
    refuse_mixing(archive, stage, SEALED[0])
    refuse_foreign(stage, STAGE)
    source = birdset_archive(archive) if inputs.dataset == "birdset" else archive
    listing = list_archive(source, inputs.exclude)
    if inputs.only:
        listing = replace(listing, items=tuple(item for item in listing.items if item.path in inputs.only))
    paths = [item.path for item in listing.items]
    sites, table_text = site_table_of(
        inputs.table, paths, config.storage, site_by_name(config.audio), inputs.group_column
    )
    annotations = given if given is not None else AnnotationSet()
    if inputs.dataset == "birdset":
        annotations, places = birdset_labels(archive, paths)
        sites, table_text = sites or places, table_text or repr(sorted(places.by_path.items()))
    elif inputs.dataset == "birdeep" and not inputs.annotations:
        annotations = birdeep_labels(archive, paths)
    if inputs.annotations or inputs.listened:
        annotations = annotations_of(inputs.labels, paths, config.storage, archive, inputs.exclude)
    else:
        refuse_unknown(
            annotations, archive.url, archive.url, paths, inputs.exclude, skip_missing=inputs.skip_missing
        )
    listing = replace(listing, items=versions_with_rows(listing.items, sites, config.audio))
    chosen = chosen_labels(annotations, config.labels)
    source_of_labels = inputs.annotations or archive.url
    if annotations.annotated_paths:
        print(shown("\n".join(chosen.lines())), flush=True)
    refuse_no_calls(annotations, chosen, source_of_labels)
    key = sections_hash(config, *TABLE_KNOBS)
    hashes = {
        "archive": archive_hash(listing.items),
        "annotations": annotations_hash(annotations),
        "table": text_hash(table_text),
    }
    done = done_before(stage, STAGE, key, hashes)
    if (
        done is not None
        and not inputs.verify
        and not done.counts.get("passing")
        and is_whole(stage, done, *SEALED)
    ):
        print(f"already done, skipping: {stage.url} ({done.counts['recordings']:,} recordings)")
        return PARTIAL if done.counts["rejected"] else OK
    refuse_absent(source, listing.items, annotations.annotated_paths, config, sites)
    if dry_run:
        _print_plan(source, stage, listing, sites, config)
        return OK
    settings = decode_settings(config)
    with stage_run(stage, STAGE, config, key, hashes, settings, when_done="again") as run:
        preparation = _Preparation(source, run, listing, sites, runner, inputs.verify)
        return preparation.to_the_end(chosen, _name_of(inputs.annotations))


@dataclass(frozen=True)
class _Preparation:
    archive: Storage
    run: StageRun
    listing: Listing
    sites: SiteTable | None
    runner: Runner
    verify: bool = False

    def to_the_end(self, chosen: ChosenLabels, source: str) -> int:
        """Units that are left, then the tables."""
        items, stage, config = self.listing.items, self.run.stage, self.run.config
        if num_damaged := mend(stage, SEALED[0], self.verify):
            print(f"{num_damaged:,} units were damaged and are done again", flush=True)
        if num_again := forget_passing(stage):
            print(f"{num_again:,} recordings that could not be reached are tried again", flush=True)
        units = _units(items, config)
        pending = pending_units(units, read_commits(stage))
        left = sum(len(unit.items) for unit in pending)
        if left == len(items):
            inventory = take_inventory(self.archive, items, config.audio, self.sites, sample=SAMPLED_HEADERS)
            stored = config.spectrogram.storage
            lines = inventory_lines(self.listing, inventory, os.cpu_count() or 1, stored)
            print("\n".join(lines), flush=True)
        else:
            print(f"resuming: {len(items) - left:,} of {len(items):,} done", flush=True)
        if pending:
            self._work_off(pending)
        commits = read_commits(stage)
        counted = tally(items, commits)
        counted.refuse_incomplete()
        remove_leftovers(stage, (file.key for commit in commits for file in commit.files), SEALED[0])
        counts, split = finish(stage, config, items, commits, chosen, source)
        self.run.finish(counts)
        _print_summary(stage, counts, split)
        return PARTIAL if counted.rejected else OK

    def _work_off(self, pending: list[Unit]) -> None:
        work = PrepareWork.of(self.archive, self.run.stage, self.run.config, self.sites)
        knobs = self.run.config.prepare
        spread = Spread(
            num_processes=knobs.processes, max_deaths=knobs.max_attempts, timeout_s=knobs.recording_timeout_s
        )
        with self.runner.session():
            work_off(self.runner, self.run, pending, partial(_itself, work), spread)


def _itself(work: PrepareWork) -> PrepareWork:
    return work


def _units(items: Sequence[Item], config: Config) -> list[Unit]:
    return plan_units(items, config.prepare.recordings_per_unit, config.prepare.bytes_per_unit)


def decode_settings(config: Config) -> dict[str, Any]:
    """Units that were decoded with other settings cannot be mixed with new ones."""
    mine: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for name in DECODE_KNOBS:
        section, _, knob = name.partition(".")
        values = getattr(config, section).model_dump(mode="json")
        mine |= {f"{section}.{k}": v for k, v in values.items() if not knob or k == knob}
    mine.pop("audio.block_s")  # bounds memory, changes no result
    return mine


def _name_of(annotations: str) -> str:
    """The last part of a path or address: where it lies does not change what the labels say."""
    return annotations.rstrip("/").replace("\\", "/").rpartition("/")[2]


def _print_plan(
    archive: Storage, stage: Storage, listing: Listing, sites: SiteTable | None, config: Config
) -> None:
    inventory = take_inventory(archive, listing.items, config.audio, sites, sample=SAMPLED_HEADERS)
    print("\n".join(inventory_lines(listing, inventory, os.cpu_count() or 1, config.spectrogram.storage)))
    units = _units(listing.items, config)
    pending = pending_units(units, read_commits(stage))
    print(f"plan: {len(units):,} units, {len(pending):,} to do, into {stage.url}")


def _print_summary(stage: Storage, counts: dict[str, Any], split: SplitSummary) -> None:
    print(
        f"{counts['offered']:,} offered = {counts['recordings']:,} done ({counts['salvaged']:,} salvaged) + "
        f"{counts['rejected']:,} rejected; {counts['hours']:,.2f} h, {counts['chunks']:,} chunks, "
        f"{counts['labels']:,} labels"
    )
    rejects = read_table(stage, "rejects.parquet").to_pylist()
    reasons = (row["reason"] for row in rejects if row["status"] == "rejected")
    if line := reasons_line(reasons, f"{stage.url}/rejects.parquet"):
        print(line)
    if text := cancelling_text(rejects):
        log.warning("%s", text)
    for note in counts["label_notes"]:
        print(shown(note))
    if counts.get("labels_out_of_band"):
        print(
            f"{counts['labels_out_of_band']:,} labels lie wholly outside {LOW_HZ:g} to {HIGH_HZ:g} Hz, which is all the detector "
            f"hears, and train nothing (e.g. {counts['label_out_of_band']})"
        )
    print_split(split)
    say_silence(read_table(stage, "labels.parquet"), read_table(stage, "splits.parquet"))
    print(f"prepared: {stage.url}")


def say_silence(labels: pa.Table, splits: pa.Table) -> None:
    """Warn of a split that has no call where training needs some."""
    if text := silence_text(silent_splits(labels, splits)):
        log.warning("%s", text)


def print_split(split: SplitSummary) -> None:
    """Splits in chunks and recordings, statistics, leaks."""
    parts = [f"{name} {count:,} ({split.recordings[name]:,})" for name, count in split.chunks.items()]
    print(f"chunks (recordings): {', '.join(parts)}")
    print(f"normalisation: mean {split.moments.mean:.4f}, std {split.moments.std:.4f} over the pool")
    if split.above_background is not None:
        above = split.above_background
        print(f"above the median of every recording and bin: mean {above.mean:.4f}, std {above.std:.4f}")
    if split.leakage:
        print(f"leakage: {100 * split.leakage:.1f} % of test chunks share audio with a training chunk")
    for leak in split.leaks:
        log.warning("leak: %s", leak)
    if not split.leaks:
        print("leak audit: clean")
