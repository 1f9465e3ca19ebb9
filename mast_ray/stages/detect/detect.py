"""`mast detect`: boxes for every recording of an archive, each counted exactly once as done or rejected.

The driver lists, plans, hands out units and adds up; it never sees audio, and holds a
few hundred bytes per recording.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mast_ray.config.errors import OK, PARTIAL, ConfigError
from mast_ray.config.shown import shown
from mast_ray.config.tree import Config
from mast_ray.inference.naming import load_names, used_embedding
from mast_ray.inference.tuned_detector import doubts_nested
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.recordings.decoding.faults import reasons_line
from mast_ray.stages.detect.earlier import EARLIER, FOLDERS, bring_back, set_aside, write_earlier_table
from mast_ray.stages.detect.load_work import WorkMaker, calibration_of
from mast_ray.stages.detect.plan import (
    Workers,
    order_by_site_and_date,
    plan_detect_units,
    workers_of,
)
from mast_ray.stages.detect.tables import doubts_about, prune, survey, write_recordings_and_rejects
from mast_ray.stages.runner import HERE, ON_RAY, Runner, work_off
from mast_ray.storage.outputs import is_whole, mend, refuse_mixing, remove_leftovers, seal_of
from mast_ray.storage.spread import Spread
from mast_ray.storage.stage_folders import (
    MANIFEST,
    SCHEMA_VERSION,
    put_manifest,
    text_hash,
)
from mast_ray.storage.stage_run import StageRun, done_before, refuse_foreign, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.unit_runner import Work
from mast_ray.storage.units import Item, Unit, archive_hash, forget_passing, iter_commits, pending_units
from mast_ray.tables.preparing.inventory import (
    SYNTHETIC_COPIES,
    inventory_lines,
    list_archive,
    take_inventory,
)
from mast_ray.tables.preparing.site_table import site_by_name, site_table_of, versions_with_rows
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.files.names_files import names_version_of

STAGE = "detect"
TABLE = "table.csv"  # what the user's table said, for who detects again
SAMPLED_HEADERS = 200
SEALED = (FOLDERS, ("recordings.parquet", "rejects.parquet"))


@dataclass(frozen=True)
class DetectInputs:
    """Where everything comes from and goes to."""

    model: str
    archive: str
    out: str
    table: str = ""
    exclude: tuple[str, ...] = SYNTHETIC_COPIES
    threshold: float | None = None  # None: everything above the score floor is stored
    verify: bool = False  # read every file of an earlier run, and do again what was changed


def detect(inputs: DetectInputs, config: Config, *, runner: Runner = ON_RAY, dry_run: bool = False) -> int:
    """Sweep an archive; returns the exit code."""
    archive, stage = open_storage(inputs.archive, config.storage), open_storage(inputs.out, config.storage)
    refuse_mixing(archive, stage, SEALED[0])
    refuse_foreign(stage, STAGE)
    card = read_card(inputs.model, config.storage)
    if card.kind != "detector":
        raise ConfigError(f"{inputs.model} holds {card.kind} weights: give a folder written by `mast train`")
    threshold = stored_threshold(inputs.threshold, config, card)
    listing = list_archive(archive, inputs.exclude)
    paths = [item.path for item in listing.items] if inputs.table else []
    sites, table_text = site_table_of(inputs.table, paths, config.storage, site_by_name(config.audio))
    listing = replace(listing, items=versions_with_rows(listing.items, sites, config.audio))
    model_at = open_storage(inputs.model, config.storage)
    used_embedding(config.detect.embeddings, load_names(model_at, card))  # a mistake is told before the work
    calibration = calibration_of(card, model_at.url)
    settings = settings_of(config, card, threshold) | names_settings(model_at)
    sweeping = Sweep(
        archive, stage, listing.items, config, sites, settings, card.score_threshold, inputs.verify,
        num_verdicts=calibration.num_examples if calibration is not None else 0,
        table_text=table_text, exclude=inputs.exclude,
    )  # fmt: skip
    if (code := sweeping.code_if_done(writes=not dry_run)) is not None:
        return code
    if dry_run:
        inventory = take_inventory(archive, listing.items, config.audio, sites, sample=SAMPLED_HEADERS)
        print("\n".join(inventory_lines(listing, inventory, os.cpu_count() or 1)))
        units, pending = sweeping.plan(workers_of(config, HERE.resources()))
        print(f"plan: {len(units):,} units, {len(pending):,} to do, into {stage.url}")
        return OK
    maker = WorkMaker(model_at.url, archive, stage, config, sites, threshold, sweeping.num_bytes)
    return sweeping.run(runner, maker)


def stored_threshold(wanted: float | None, config: Config, card: Card) -> float:
    """The lowest score of a stored detection. Songs are joined from confident calls
    only: noise would bridge every gap.
    """
    if wanted is not None:
        return wanted
    if config.detect.song_gap_s == 0:
        return 0.0
    if card.score_threshold is None:
        raise ConfigError(
            "detect.song_gap_s joins calls above a threshold, and this model's card names none:\n"
            "give one, e.g. --threshold 0.3"
        )
    return card.score_threshold


def settings_of(config: Config, card: Card, threshold: float) -> dict[str, Any]:
    """Everything a unit's result depends on besides its recordings."""
    audio = config.audio.model_dump(mode="json")
    audio.pop("block_s")  # bounds memory, changes no result
    knobs: dict[str, Any] = {f"audio.{name}": value for name, value in audio.items()}
    for name in ("score_floor", "nms_overlap", "max_detections"):
        knobs[f"evaluate.{name}"] = getattr(config.evaluate, name)
    for name in ("embeddings", "song_gap_s"):
        knobs[f"detect.{name}"] = getattr(config.detect, name)
    if doubts_nested(card, config.evaluate):
        knobs["doubts_nested"] = True
    return knobs | {
        "spectrogram.short_recordings": config.spectrogram.short_recordings,
        "schema_version": SCHEMA_VERSION,
        "threshold": threshold,
        "model": card.weights_sha256,
        "calibration": text_hash(repr(card.calibration)) if card.calibration else "",
        "post": text_hash(repr(card.post)) if card.post and config.evaluate.post == "card" else "",
    }


def names_settings(model: Storage) -> dict[str, Any]:
    """The names that detections get; nothing for a model without, so that its earlier runs go on."""
    version = names_version_of(model)
    return {"names": version} if version else {}


class Sweep:
    """One run over an archive: plan, work off, add up, declare whole. What a unit's work is, is handed in."""

    def __init__(
        self,
        archive: Storage,
        stage: Storage,
        items: Sequence[Item],
        config: Config,
        sites: SiteTable | None,
        settings: dict[str, Any],
        model_threshold: float | None = None,
        verify: bool = False,
        num_verdicts: int = 0,
        table_text: str = "",
        exclude: Sequence[str] = (),
    ) -> None:
        self.archive, self.stage, self.config, self.sites, self.settings = (
            archive,
            stage,
            config,
            sites,
            settings,
        )
        self.model_threshold = model_threshold  # for the readers of the table: the boxes do not depend on it
        self.verify = verify
        self.num_verdicts = num_verdicts  # behind the probabilities
        self.table_text, self.exclude = table_text, exclude
        self.items = order_by_site_and_date(items, config.audio, sites)
        self.num_bytes = sum(item.num_bytes for item in self.items)
        self.inputs = {"archive": archive_hash(self.items), "model": str(settings.get("model", ""))}
        self.key = text_hash(repr(sorted(settings.items())))

    def code_if_done(self, writes: bool = True) -> int | None:
        """The exit code of an earlier run that has done just this."""
        done = done_before(self.stage, STAGE, self.key, self.inputs)
        if done is None:
            return None
        counts = done.counts
        if counts.get("passing") or self.verify or not is_whole(self.stage, done, *SEALED):
            return None  # some could not be reached, or were lost since: they are tried again
        print(f"already done, skipping: {self.stage.url} ({counts['recordings']:,} recordings)")
        _warn(counts.get("warnings", ()))
        if writes and counts.get("model_threshold") != self.model_threshold:
            put_manifest(
                self.stage, replace(done, counts={**counts, "model_threshold": self.model_threshold})
            )
            print(f"the model's own threshold is {self.model_threshold} now")
        return PARTIAL if counts["rejected"] else OK

    def plan(self, workers: Workers) -> tuple[list[Unit], list[Unit]]:
        """All units, and those with work left."""
        units = plan_detect_units(self.items, self.config.detect, workers)
        return units, pending_units(units, iter_commits(self.stage))

    def run(self, runner: Runner, maker: Callable[[Workers], Callable[[], Work]]) -> int:
        """Do what is left and write the tables."""
        with (
            stage_run(
                self.stage, STAGE, self.config, self.key, self.inputs, self.settings, when_done="again"
            ) as run,
            runner.session(),
        ):
            if num_damaged := mend(self.stage, SEALED[0], self.verify):
                print(f"{num_damaged:,} units were damaged and are done again", flush=True)
            if num_back := bring_back(self.stage, self.items):
                print(
                    f"{num_back:,} recordings of an earlier run are offered again: their detections count again"
                )
            if num_again := forget_passing(self.stage):
                print(f"{num_again:,} recordings that could not be reached are tried again", flush=True)
            workers = workers_of(self.config, runner.resources())
            units, pending = self.plan(workers)
            left = sum(len(unit.items) for unit in pending)
            if left < len(self.items):
                print(f"resuming: {len(self.items) - left:,} of {len(self.items):,} done", flush=True)
            else:
                print(
                    f"{len(self.items):,} recordings, {self.num_bytes / 1e9:,.2f} GB in {len(units):,} units on "
                    f"{workers.num_actors} x {workers.device}",
                    flush=True,
                )
            if pending:
                del units
                self.stage.delete(
                    MANIFEST
                )  # not whole any more: who reads now would get some of the new recordings
                work_off(runner, run, pending, maker(workers), self._spread(workers, len(pending)))
            return self._finish(run, left)

    def _spread(self, workers: Workers, num_units: int) -> Spread:
        return Spread(
            min(workers.num_actors, num_units),
            workers.cpus_per_actor,
            workers.gpus_per_actor,
            max_deaths=self.config.prepare.max_attempts,
            timeout_s=self.config.detect.stall_timeout_s,
        )

    def _finish(self, run: StageRun, num_new: int) -> int:
        self.stage.delete(MANIFEST)  # from here on the folder is not whole until the new manifest stands
        found = survey(self.stage, self.items)
        counted = found.tally
        counted.refuse_incomplete()
        num_aside = set_aside(self.stage, self.items, found.results)
        if prune(self.stage, found.results):
            found = survey(self.stage, self.items)
        num_earlier = write_earlier_table(self.stage)
        written = write_recordings_and_rejects(self.stage, self.items, found.results, found.rejects)
        keys = [file.key for result in found.results for file in result.files]
        warnings = doubts_about(self.stage, found, written, self.model_threshold)
        warnings += [written.cancelling] if written.cancelling else []
        counts = {
            "offered": counted.offered,
            "recordings": counted.done,
            "rejected": counted.rejected,
            "passing": found.num_passing,
            "earlier": num_earlier,
            "salvaged": written.num_salvaged,
            "hours": round(written.hours, 4),
            "detections": found.num_detections,
            "model_threshold": self.model_threshold,
            "archive": self.archive.url,  # for who looks into the recordings later
            "exclude": list(self.exclude),
            "calibration_verdicts": self.num_verdicts,
            "files": sum(key.startswith("detections/") for key in keys),
            "tables": {"detections": text_hash("\n".join(sorted(keys)))},
            "warnings": warnings,
        }
        assert written.num_recordings == counted.done, "recordings.parquet and the commits disagree"
        remove_leftovers(self.stage, keys, SEALED[0])
        if self.table_text:
            self.stage.write_atomic(TABLE, self.table_text.encode())
        else:
            self.stage.delete(TABLE)
        if num_earlier:
            about = {"recordings": num_earlier, "model_threshold": self.model_threshold}
            replace(run, stage=self.stage.at(EARLIER), inputs={}).finish(about)
        run.finish(counts | {"seal": seal_of(self.stage, *SEALED)})
        if num_aside:
            print(
                f"{num_aside:,} recordings of earlier runs are not in {self.archive.url} any more: their detections are kept in\n"
                f"{self.stage.at(EARLIER).url} and count again when they are back; --forget-missing deletes them"
            )
        print(summary_line(counts, num_new))
        _warn(warnings)
        if line := reasons_line(
            (row["reason"] for row in found.rejects), f"{self.stage.url}/rejects.parquet"
        ):
            print(line)
        print(place_line(self.stage.url, float(self.settings.get("threshold", 0.0)), self.model_threshold))
        return PARTIAL if counted.rejected else OK


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(shown(f"warning: {warning}"), file=sys.stderr)


def summary_line(counts: dict[str, Any], num_new: int) -> str:
    """What a person wants to read in the end."""
    return (
        f"{counts['offered']:,} offered = {counts['recordings']:,} done ({counts['salvaged']:,} salvaged) + "
        f"{counts['rejected']:,} rejected; {counts['hours']:,.2f} h, {counts['detections']:,} detections in "
        f"{counts['files']:,} files; {num_new:,} recordings were worked on in this run"
    )


def place_line(url: str, stored_from: float, model_threshold: float | None) -> str:
    """Where the table is, and which of its rows are calls: most are below the model's threshold."""
    if model_threshold is None or stored_from >= model_threshold:
        return f"detections: {url}"
    return f"detections: {url}; calls are those of at least {model_threshold:.4f}, the model's own threshold"
