"""`mast learn RUN`: one round from corrections to better detections, in a folder of its own; RUN is not touched.

OUT/prepared      the corrected recordings, dealt into those to learn from and those to judge by
OUT/adapted       the detector, trained on from the present one; OUT/scores: both on the held-out corrections
OUT/model         the better of the two, with names where corrections have some; the present one with another threshold where that does
OUT/detections    the archive, detected again; OUT/changes.csv: boxes gained, lost and renamed
OUT/corrections   copied: the next round knows them too. OUT/verdicts.csv: those that were drawn at random
OUT/learn.json    what was decided, and why
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from shlex import quote
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.stage_knobs import DetectorTrainConfig, lengthened, rescaled_epochs
from mast_ray.config.tree import Config, ModelConfig
from mast_ray.evaluation.figure_tables import difference_text, interval_text, without_nan
from mast_ray.evaluation.intervals import Difference, Interval, paired_differences, wilson_limits
from mast_ray.evaluation.metrics import best_threshold
from mast_ray.evaluation.review.corrections import line_of, log_files, read_logs
from mast_ray.evaluation.review.review_state import AgreedBox, agreed_boxes, fold_log, looked_at, name_notes
from mast_ray.evaluation.review.rounds import last_words
from mast_ray.evaluation.review.taught import Taught, taught_by
from mast_ray.evaluation.review.verdicts import verdicts_csv
from mast_ray.evaluation.score_sheet import score_rows
from mast_ray.evaluation.scoring import sums_of
from mast_ray.reporting.detection_tables import model_threshold, read_detections, read_recordings
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.stages.detect.detect import detect
from mast_ray.stages.learn.archive import groups_of, lesson_of, prepare_lesson
from mast_ray.stages.learn.changes import Changes, changes_between, is_found
from mast_ray.stages.learn.naming import NamesKept, learned_names
from mast_ray.stages.learn.places import (
    CORRECTIONS,
    DETECTIONS,
    MODEL,
    PREPARED,
    RECORD,
    LearnedRun,
    inputs_again,
)
from mast_ray.stages.runner import HERE, Runner
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.train.pace import pace_of_run
from mast_ray.stages.train.pieces import run_teach_pieces
from mast_ray.stages.train.train import run_train_detector
from mast_ray.storage.stage_folders import MANIFEST, text_hash
from mast_ray.storage.storage import Storage, map_keys, open_storage
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split, heard_chunks
from mast_ray.training.files.model_files import CARD, WEIGHTS, read_card, write_card

log = logging.getLogger("mast.learn")

SECTION: Literal["self_train.stage2"] = "self_train.stage2"
ADAPTED, SCORES = "adapted", "scores"
WANTED_PASSES = 900  # chunks shown in all: few corrections are shown more often
MOST_EPOCHS = 12


class Compared(NamedTuple):
    """Both models on the held-out corrections, which chose the threshold of the adapted one: the present one is judged with a
    threshold that they chose too, else a better threshold would pass for a better detector. Where that is all there is to gain,
    the present one is kept with it.
    """

    before: Interval  # as it is
    retuned: Interval  # with that threshold
    threshold: float
    after: Interval
    gain: Difference  # in F1, of the adapted one over the present one with that threshold
    num_calls: int
    num_recordings: int

    @property
    def kept(self) -> Literal["adapted", "retuned", "present"]:
        if self.gain.estimate > 0:
            return "adapted"
        return "retuned" if self.after.estimate > self.before.estimate else "present"


@dataclass(frozen=True)
class Round:
    """What a round did."""

    taught: Taught
    compared: Compared
    names: NamesKept
    changes: Changes | None  # None: the present model stays with its detections, which are copied
    precision: Interval | None  # of the run's detections, by verdicts on randomly drawn ones

    @property
    def kept(self) -> str:
        return self.compared.kept


def learn(
    config: Config, place: LearnedRun, out: str, *, minutes: float = 5.0, runner: Runner = HERE
) -> Round:
    """One round; raises DataError where nothing can be learned."""
    target = open_storage(out, config.storage)
    refuse_used(target, place)
    agreed, taught = what_was_said(place)
    labels, dealt = (
        open_prepared(url, config.storage) if url else None for url in (place.labels, place.dealt)
    )
    lesson = lesson_of(taught, labels, dealt, groups_of(read_recordings(place.detections)))
    print(said_text(taught, lesson.num_tested), flush=True)
    precision = random_precision(agreed, place.detections, target)
    archive = prepare_lesson(lesson, place.audio, target.at(PREPARED).url, config, runner)
    adapted = adapt(config, place.model, archive, target.at(ADAPTED).url, minutes, runner)
    compared = compare(config, place.model, adapted, archive, target.at(SCORES), runner)
    print(compared_text(compared), flush=True)
    is_adapted = compared.kept == "adapted"
    source = open_storage(adapted if is_adapted else place.model, config.storage)
    for name in (WEIGHTS, CARD):
        target.at(MODEL).write_atomic(name, source.read_bytes(name))
    if compared.kept == "retuned":
        card = read_card(place.model, config.storage)
        write_card(target.at(MODEL), replace(card, score_threshold=compared.threshold))
    names = learned_names(config, place.model, target.at(MODEL), archive, is_adapted)
    print(names.text(), flush=True)
    changes = None
    if compared.kept != "present" or names.is_new:
        changes = detect_again(config, place, target, runner)
        told = corrected_text(archive, place, target)
        print(f"{changes.text()}\n{told}", flush=True)
    else:
        copy_detections(open_storage(place.detections, config.storage), target.at(DETECTIONS))
    keep_corrections(place, target)
    done = Round(taught, compared, names, changes, precision)
    record = record_of(done, place) | {"key": round_key(config, place, minutes)}
    target.write_atomic(RECORD, json.dumps(without_nan(record), indent=1).encode())
    return done


def refuse_used(target: Storage, place: LearnedRun) -> None:
    """A round goes into a folder of its own."""
    if target.url in (place.run, place.detections):
        raise DataError(f"{target.url} is the run itself, which is not to be touched: give another --out")
    if target.stat(RECORD) is not None:
        raise DataError(
            f"{target.url} holds a finished round of other corrections or settings:\nreview it and learn from it, or give another --out"
        )


def round_before(config: Config, place: LearnedRun, out: str, minutes: float) -> dict[str, Any] | None:
    """What an earlier run of just this round left in its record; None where there is none, or that of another round."""
    target = open_storage(out, config.storage)
    if target.stat(RECORD) is None:
        return None
    record: dict[str, Any] = json.loads(target.read_bytes(RECORD))
    return record if record.get("key") == round_key(config, place, minutes) else None


def round_key(config: Config, place: LearnedRun, minutes: float) -> str:
    """Names what a round is made of: the run with its model and corrections, and the settings."""
    said = sorted(line_of(action) for action in read_logs(place.corrections).actions)
    made_by = read_card(place.model, config.storage).weights_sha256
    knobs = config.model_dump(mode="json", exclude={"cluster", "storage", "prepare"})
    facts = [place.run, place.labels, place.dealt, place.rounds, made_by, minutes, said, knobs]
    return text_hash(json.dumps(facts, sort_keys=True))


def what_was_said(place: LearnedRun) -> tuple[list[AgreedBox], Taught]:
    """The corrections of all reviewers of a run, and what they teach."""
    found = read_logs(place.corrections)
    for problem in found.problems:
        log.warning("%s", problem)
    states = fold_log(found.actions)
    agreed, looked = last_words(agreed_boxes(states), place.rounds), looked_at(states)
    for note in name_notes(agreed):
        log.warning("%s", note)
    recordings = read_recordings(place.detections)
    ids, paths = (recordings.column(name).to_pylist() for name in ("recording_id", "path"))
    taught = taught_by(agreed, looked, dict(zip(ids, paths, strict=True)))
    if not taught.calls:
        raise DataError(
            f"{place.corrections} names no call: learning needs some that are right\n"
            f"accept, draw or name boxes: mast review {quote(place.run)}"
        )
    return agreed, taught


def said_text(taught: Taught, num_tested: int) -> str:
    hours = sum(end_s - begin_s for _, begin_s, end_s in taught.listened) / 3600
    lines = [
        f"{taught.num_right:,} boxes right, {taught.num_wrong:,} wrong, {taught.num_disputed:,} disputed (not learned from), "
        f"in {len(taught.paths):,} recordings; {hours * 60:,.1f} minutes looked at, nothing else counts as background"
    ]
    if num_tested:
        lines.append(f"{num_tested:,} calls lie in recordings of the test splits: they are not learned from")
    return "\n".join(lines)


def random_precision(agreed: list[AgreedBox], detections: str, target: Storage) -> Interval | None:
    """Precision of the run's detections at its threshold by those of them that were drawn at random; their verdicts go to
    verdicts.csv. Verdicts on boxes of earlier rounds say nothing about this run.
    """
    sample = [
        one.box
        for one in agreed
        if one.box.detection_id
        and one.box.queue == "random"
        and not one.is_disputed
        and one.box.score is not None
    ]
    if sample:
        own = detection_ids(detections, {box.path for box in sample})
        sample = [box for box in sample if box.detection_id in own]
    threshold = model_threshold(detections) or 0.0
    if sample:
        target.write_atomic("verdicts.csv", verdicts_csv(sample))
    drawn = [box for box in sample if (box.score or 0.0) >= threshold]
    if not drawn:
        return None
    right = sum(box.verdict == "right" for box in drawn)
    low, high = (float(limit) for limit in wilson_limits(right, len(drawn)))
    found = Interval(right / len(drawn), low, high, "wilson")
    print(
        f"precision of the run by {len(drawn)} boxes drawn at random: {interval_text(found)}\n"
        f"(at every threshold, and for `mast summarise`: mast calibrate DETECTIONS --verdicts {quote(f'{target.url}/verdicts.csv')})"
    )
    return found


def detection_ids(detections: str, paths: set[str]) -> set[str]:
    """The ids of all detections in some recordings."""
    table = read_detections(detections)
    table = table.filter(pc.is_in(table.column("path"), pa.array(sorted(paths))))
    corners = ("path", "begin_s", "end_s", "low_hz", "high_hz")
    return {detection_id(*row) for row in zip(*(table.column(name).to_pylist() for name in corners))}


def adapt(config: Config, model: str, archive: Prepared, out: str, minutes: float, runner: Runner) -> str:
    """Train on from the present model, with its statistics; returns the folder. One without a network is taught anew by all
    labels and corrections there are, to put together what stands out as they say.
    """
    if not ModelConfig.model_validate(read_card(model, config.storage).model).learns:
        run_teach_pieces(config, archive.storage.url, out, runner=runner)
        return out
    num_chunks = len(heard_chunks(archive, chunks_of_split(archive, "train")))
    pace = pace_of_run(config, model, open_storage(out, config.storage))
    knobs = fitted_epochs(config.self_train.stage2, num_chunks, minutes, pace)
    config = apply_overrides(config, {f"{SECTION}.{name}": value for name, value in knobs.items()})
    print(f"adapting: {num_chunks} chunks, {knobs['epochs']} epochs, {pace:.1f} chunks/s", flush=True)
    run_train_detector(config, archive.storage.url, out, section=SECTION, init_detector=model, runner=runner)
    return out


def fitted_epochs(
    knobs: DetectorTrainConfig, num_chunks: int, minutes: float, chunks_per_s: float
) -> dict[str, Any]:
    """Few corrections are shown more often, as `min_steps` asks for too; many within the minutes there are."""
    shown = max(1, num_chunks // knobs.batch_size) * knobs.batch_size  # in an epoch
    most = max(1, int(minutes * 60 * chunks_per_s / shown))
    wanted = min(max(math.ceil(WANTED_PASSES / max(num_chunks, 1)), knobs.epochs), MOST_EPOCHS)
    epochs = min(max(wanted, lengthened(knobs, num_chunks).epochs), most)
    found: dict[str, Any] = rescaled_epochs(knobs, epochs)
    return found | {"min_steps": 0, "validate_every_epochs": max(epochs / 2, 1.0)}


def compare(
    config: Config, before: str, after: str, archive: Prepared, scores: Storage, runner: Runner
) -> Compared:
    """Both on the held-out corrections, over the same recordings."""
    wanted = Wanted(("val",))
    found = {
        name: evaluate_model(config, model, archive.storage.url, scores.at(name).url, wanted, runner=runner)
        for name, model in (("before", before), ("after", after))
    }
    rows = {name: one.sheet.whole("val") for name, one in found.items()}
    old, new = rows["before"], rows["after"]
    assert old is not None and new is not None
    present, adapted = (found[name].splits["val"] for name in ("before", "after"))
    best, drawn = best_threshold(present.matches), (config.evaluate.bootstrap, config.seed)
    threshold = best if math.isfinite(best) else found["before"].threshold.value
    retuned = score_rows(present, "val", threshold, *drawn)[0].figures["f1"]
    sums = sums_of(present, threshold), sums_of(adapted, found["after"].threshold.value)
    gain = paired_differences(*sums, *drawn)["f1"]
    figures = (old.figures["f1"], retuned, threshold, new.figures["f1"], gain)
    return Compared(*figures, num_held_out(archive), old.num_recordings)


def num_held_out(archive: Prepared) -> int:
    """Calls that both are judged by, each once: scores count one in every chunk that shows it."""
    held = archive.splits.filter(pc.equal(archive.splits.column("split"), "val")).column("recording_id")
    rows = pc.is_in(archive.labels.column("recording_id"), held.combine_chunks())
    return int(pc.sum(rows, min_count=0).as_py())


def compared_text(one: Compared) -> str:
    verdict = {
        "adapted": "the adapted detector is kept",
        "retuned": f"the present detector stays, with the threshold {one.threshold:.3g}: the adapted one is no better",
        "present": "the present detector stays: the adapted one is no better",
    }[one.kept]
    return (
        f"held-out corrections ({one.num_calls} calls in {one.num_recordings} recordings): F1 {interval_text(one.before)} before, "
        f"{interval_text(one.after)} adapted\nwith the threshold that suits them best ({one.threshold:.3g}) the present detector has "
        f"{interval_text(one.retuned)}: gain {difference_text(one.gain)}\n{verdict}"
    )


def detect_again(config: Config, place: LearnedRun, target: Storage, runner: Runner) -> Changes:
    """The whole archive with the kept model, and what became of every box."""
    detect(inputs_again(place, target.at(MODEL).url, target.at(DETECTIONS).url), config, runner=runner)
    changes = changes_between(kept_boxes(place.detections), kept_boxes(target.at(DETECTIONS).url))
    target.write_atomic("changes.csv", changes.csv())
    return changes


def kept_boxes(detections: str) -> pa.Table:
    """Detections of a folder from the threshold of its model on."""
    return read_detections(detections, model_threshold(detections))


def corrected_text(archive: Prepared, place: LearnedRun, target: Storage) -> str:
    """How many of the corrected calls each model finds."""
    calls = archive.labels.filter(
        pa.array(~np.isnan(archive.labels.column("low_hz").to_numpy().astype(float)))
    )
    found = [
        int(is_found(calls, kept_boxes(url)).sum()) for url in (place.detections, target.at(DETECTIONS).url)
    ]
    return f"of {len(calls):,} labelled calls {found[0]:,} were found before, {found[1]:,} now"


def copy_detections(source: Storage, target: Storage) -> None:
    """The detections as they are: the new folder is a run like any other. What vouches for them comes last."""
    keys = [entry.key for entry in source.list()]
    map_keys(lambda key: target.write_atomic(key, source.read_bytes(key)), [k for k in keys if k != MANIFEST])
    target.write_atomic(MANIFEST, source.read_bytes(MANIFEST))


def keep_corrections(place: LearnedRun, target: Storage) -> None:
    """The logs go on in the new run: what was said once need not be said again."""
    folder = target.local_path(CORRECTIONS)
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in log_files(place.corrections):
        shutil.copyfile(path, folder / path.name)


def record_of(done: Round, place: LearnedRun) -> dict[str, Any]:
    taught, compared = done.taught, done.compared
    return {
        "run": place.run,
        "model": place.model,
        "audio": place.audio,
        "corrections": {
            "right": taught.num_right, "wrong": taught.num_wrong, "disputed": taught.num_disputed,
            "recordings": len(taught.paths),
        },
        "held_out": {
            "calls": compared.num_calls, "recordings": compared.num_recordings,
            "before": compared.before._asdict(), "after": compared.after._asdict(), "gain": compared.gain._asdict(),
            "before_retuned": compared.retuned._asdict(), "threshold_retuned": compared.threshold,
        },
        "kept": done.kept,
        "names": done.names.record(),
        "changes": None if done.changes is None else done.changes.counts,
        "labels": place.labels,
        "rounds": [*place.rounds, datetime.now(UTC).isoformat()],
        "precision_of_the_run": None if done.precision is None else done.precision._asdict(),
    }  # fmt: skip
