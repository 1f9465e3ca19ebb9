"""`mast evaluate --detections TABLE --annotations TABLE`: any table of detections against any table of annotations.

Detections are a Parquet table or folder of ours, or a file of any annotation format with scores; annotations are a
prepared archive, labels.parquet, or files of any format. Detections of chunks (a stage of `mast evaluate` or
`mast pseudo-label`) are scored chunk by chunk, and need the prepared archive they were made from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config, LabelsConfig
from mast_ray.evaluation.event_boxes import Space
from mast_ray.evaluation.events import (
    EventTable,
    RecordingList,
    events_from_annotations,
    events_from_arrow,
    numbers_in,
    recordings_from_arrow,
    renumbered,
    spans_whole_band,
    with_facts_of,
    without_band,
)
from mast_ray.evaluation.score_sheet import ScoreSheet, Threshold, chosen_threshold, score_rows
from mast_ray.evaluation.scoring import By, Scored, left_out, score_chunks, score_tables
from mast_ray.evaluation.split_truth import Truth, truth_of_split
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet
from mast_ray.recordings.annotations.reading import ANNOTATION_SUFFIXES, has_columns, read_annotations
from mast_ray.reporting.detection_tables import (
    model_threshold,
    read_detections,
    read_parquet,
    read_recordings,
    recordings_beside,
    split_uri,
)
from mast_ray.self_training.pool import pool_of_table
from mast_ray.tables.labels.choice import chosen_labels, is_no_animal, refuse_no_calls
from mast_ray.tables.labels.spans import unheard_parts
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split

SHOWN_PROBLEMS = 5
LABELS_FILE, IGNORED_FILE = "labels.parquet", "ignored.parquet"
ENDLESS_S = 1e7  # files of annotations do not say how long a recording is


@dataclass(frozen=True)
class TableWanted:
    """What is scored against what, and how."""

    detections: str
    annotations: str
    splits: tuple[str, ...] = ()  # of a prepared archive; empty: all its annotated recordings together
    threshold: float | None = None
    tune_on: str = ""  # table whose best threshold is used
    tune_annotations: str = ""
    tune_split: str = ""
    by: tuple[By, ...] = ()
    space: Space = "mel"
    unlisted: Literal["skip", "silent"] = "skip"
    recordings: str = ""  # table that knows paths, sites and times where the others do not
    format: str = "auto"
    columns: tuple[tuple[str, str], ...] = ()  # field -> column, for the files that have them


def evaluate_tables(wanted: TableWanted, config: Config) -> tuple[ScoreSheet, dict[str, Scored]]:
    """The sheet of a table of detections, and the matches behind it by split ("": no splits)."""
    names = wanted.splits or ("",)
    _refuse_unused_columns(wanted)
    scored = {name: _scored(wanted, config, wanted.detections, wanted.annotations, name) for name in names}
    threshold = _threshold(wanted, config)
    knobs = (threshold.value, config.evaluate.bootstrap, config.seed, wanted.by)
    rows = [row for name, one in scored.items() for row in score_rows(one, name, *knobs)]
    sheet = ScoreSheet(
        wanted.detections, wanted.annotations, "", threshold, config.evaluate.iou, wanted.space,
        config.evaluate.average_precision, tuple(rows), left_out(scored.values(), threshold.value),
        _not_searched(wanted.detections, scored.values()),
    )  # fmt: skip
    return sheet, scored


def _not_searched(detections: str, scored: Iterable[Scored]) -> tuple[str, ...]:
    """A warning of annotated recordings that the folder of a `mast detect` does not count among those it has read."""
    beside = None if is_annotation_file(detections) else recordings_beside(detections)
    if beside is None:
        return ()
    searched = recordings_from_arrow(read_recordings(beside))
    names, num_calls = [], 0
    for one in scored:
        truth = one.rows()[1]
        missing = np.ones(len(truth.recordings), bool)
        with suppress(
            DataError
        ):  # names that may be several recordings: found by their detections, or nobody knows
            found = numbers_in(truth.recordings, searched)
            missing[found[found >= 0]] = False
            names += [truth.recordings.paths[row] for row in np.flatnonzero(missing)]
            num_calls += int(missing[truth.recording].sum())
    if not names:
        return ()
    return (
        f"{len(names):,} annotated recordings (e.g. {names[0]}) are not among those that {detections} has read: "
        f"{num_calls:,} calls in them count as missed",
    )


def _threshold(wanted: TableWanted, config: Config) -> Threshold:
    """Given, or tuned on another table or split, or that of the model behind the table, or none: a tuned one never sees what
    is scored, unless the user names it twice.
    """
    if wanted.threshold is not None:
        return Threshold(wanted.threshold, "given")
    if not (wanted.tune_on or wanted.tune_split):
        own = None if is_annotation_file(wanted.detections) else model_threshold(wanted.detections)
        return Threshold(0.0, "none") if own is None else Threshold(own, "model")
    table, annotations = wanted.tune_on or wanted.detections, wanted.tune_annotations or wanted.annotations
    is_same = (table, annotations) == (wanted.detections, wanted.annotations)
    if is_same and wanted.tune_split in (wanted.splits or ("",)):
        print("note: the threshold is tuned on what is scored: figures are too good", file=sys.stderr)
    tuning = _scored(wanted, config, table, annotations, wanted.tune_split)
    threshold = chosen_threshold(None, None, tuning, wanted.tune_split or table)
    if threshold.source == "fallback":
        raise DataError(
            f"no detection of {table} is right, so no threshold can be tuned on it:\ngive --threshold"
        )
    return threshold


def _scored(wanted: TableWanted, config: Config, detections: str, annotations: str, split: str) -> Scored:
    recordings = recordings_from_arrow(read_recordings(wanted.recordings)) if wanted.recordings else None
    table = None if is_annotation_file(detections) else _table_of(detections)
    if table is not None and "chunk" in table.column_names and table.column("chunk").null_count < len(table):
        if wanted.space != "mel" or wanted.unlisted != "skip":
            raise ConfigError(
                f"{detections} holds detections of single chunks, which are scored in mel space, in annotated recordings:\n"
                f"leave out {'--space' if wanted.space != 'mel' else '--unlisted'}"
            )
        return _scored_in_chunks(table, config, annotations, split, detections)
    columns = dict(wanted.columns)
    truth = read_truth(annotations, split, recordings, wanted.format, config.labels, columns)
    found = (
        read_events(detections, wanted.format, columns, config.labels, says_problems=True)
        if table is None
        else _events_at(detections, table)
    )
    if recordings is not None and not all(found.recordings.paths) and all(recordings.ids):
        found = renumbered(found, recordings)  # a table that knows ids only
    events = truth.events
    if recordings is not None:
        events = replace(events, recordings=with_facts_of(events.recordings, recordings))
    knobs = (config.evaluate.iou, wanted.space, wanted.unlisted)
    return score_tables(found, events, *knobs, truth.blocks, truth.ignored, truth.rounding)


def _events_at(uri: str, table: pa.Table) -> EventTable:
    """Detections with all recordings that `mast detect` went through, where it lists them: one without a detection is not
    another of its name.
    """
    listed = recordings_beside(uri)
    if listed:
        events = events_from_arrow(table, recordings_from_arrow(read_recordings(listed)))
        if len(events) == len(table):
            return events
    return events_from_arrow(table)


def _scored_in_chunks(table: pa.Table, config: Config, annotations: str, split: str, uri: str) -> Scored:
    if annotations.endswith(".parquet") or is_annotation_file(annotations):
        raise ConfigError(
            f"{uri} holds detections of single chunks, which overlap by half:\n"
            "give the prepared archive they were made from as --annotations, and --split"
        )
    archive = open_prepared(annotations)
    if not split:
        raise ConfigError(
            f"{uri} holds detections of single chunks:\nsay which ones to score, e.g. --split test"
        )
    chunks = chunks_of_split(archive, split)
    return score_chunks(archive, chunks, pool_of_table(table, archive, chunks), config)


def read_events(
    uri: str,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    labels: LabelsConfig = LabelsConfig(),  # noqa: B008 (frozen)
    *,
    says_problems: bool = False,
    needs_scores: bool = False,
) -> EventTable:
    """Detections from Parquet (file or folder) or from an annotation file of any format.

    What a tool itself calls no animal (BirdNET writes a sure `nocall` where it found nothing) is no detection. Tools that judge windows of three seconds draw boxes over the whole spectrum: they say when, and are read so.
    A detection without a score counts as sure, unless scores are what the table is read for (`needs_scores`).
    """
    if not is_annotation_file(uri):
        table = _table_of(uri)
        if needs_scores:
            refuse_no_scores(table, uri)
        return events_from_arrow(table)
    found = _annotations_at(uri, format, columns)
    calls = tuple(a for a in found.annotations if not is_no_animal(a.label, labels))
    if needs_scores:
        _refuse_without_score(sum(a.score is None for a in calls), len(calls), uri)
    if says_problems:
        _say_problems(found, uri)
        if num_others := len(found.annotations) - len(calls):
            print(
                f"note: {uri}: {num_others} detections are no animal by their name (nocall, noise, engine, ...) and are left "
                "out; labels.no_animal=keep keeps them",
                file=sys.stderr,
            )
    events = events_from_annotations(replace(found, annotations=calls))
    if len(events) and spans_whole_band(events).all():
        print(f"note: the boxes of {uri} span the whole spectrum: they are matched in time", file=sys.stderr)
        return without_band(events)
    return events


def refuse_no_scores(table: pa.Table, uri: str) -> None:
    """A table of detections some of which have no score would be taken for one of sure detections."""
    column = table.column("score") if "score" in table.column_names else None
    _refuse_without_score(len(table) if column is None else column.null_count, len(table), uri)


def _refuse_without_score(num_without: int, num_rows: int, uri: str) -> None:
    if num_without:
        raise DataError(
            f"{num_without:,} of {num_rows:,} detections in {uri} have no score, so they say nothing about thresholds:\n"
            "give the table as the detector wrote it, with a score for every detection"
        )


def _annotations_at(uri: str, format: str, columns: Mapping[str, str] | None) -> AnnotationSet:
    """Annotation files of one side; a mapping of columns is for the side that has them."""
    path = Path(uri)
    fits = path.is_dir() or has_columns(path.read_bytes(), path.name, columns or {})
    return read_annotations(uri, format, columns=columns if fits else None)  # type: ignore[arg-type]


def _say_problems(found: AnnotationSet, uri: str) -> None:
    """What cannot be read is left out, and never in silence."""
    for problem in found.problems[:SHOWN_PROBLEMS]:
        print(f"note: {problem}", file=sys.stderr)
    if found.problems:
        print(
            f"note: {uri}: {len(found.problems)} rows or files cannot be used and are left out",
            file=sys.stderr,
        )


def _refuse_unused_columns(wanted: TableWanted) -> None:
    sides = [uri for uri in (wanted.detections, wanted.annotations) if is_annotation_file(uri)]
    files = [path for path in map(Path, sides) if path.is_file()]
    columns = dict(wanted.columns)
    if (
        columns
        and len(files) == len(sides)
        and not any(has_columns(path.read_bytes(), path.name, columns) for path in files)
    ):
        raise ConfigError(
            f"--columns: neither table has the columns {', '.join(columns.values())}:\n"
            "write their names as in the header, e.g. --columns begin_s=T0 end_s=T1"
        )


def _table_of(uri: str) -> pa.Table:
    """One Parquet file as it is, or all detections of a folder."""
    if uri.endswith(".parquet"):
        storage, keys = split_uri(uri)
        return read_parquet(storage, keys[0])
    return read_detections(uri)


def read_truth(
    uri: str,
    split: str = "",
    recordings: RecordingList | None = None,
    format: str = "auto",
    labels: LabelsConfig = LabelsConfig(),  # noqa: B008 (frozen)
    columns: Mapping[str, str] | None = None,
) -> Truth:
    """Annotations, with the annotated recordings as their list of recordings, and the blocks of a split if named.

    Files are read as `mast prepare` reads them: each box once, calls by their labels, the uncertain ignored; but not put on
    whole frames and bins, or a table of short calls would miss a good part of itself.
    """
    if uri.endswith(".parquet"):
        storage, keys = split_uri(uri)
        if recordings is None and storage.stat("recordings.parquet") is not None:
            listed = read_recordings(f"{storage.url}/recordings.parquet")
            recordings = recordings_from_arrow(listed, only_annotated=True)
        _refuse_split(uri, split)
        truth = events_from_arrow(read_parquet(storage, keys[0]), recordings)
        ignored = None
        if keys[0] == LABELS_FILE and storage.stat(IGNORED_FILE) is not None:  # labels of a prepared archive
            ignored = events_from_arrow(read_parquet(storage, IGNORED_FILE), truth.recordings)
        return Truth(truth, ignored=ignored)
    if is_annotation_file(uri):
        _refuse_split(uri, split)
        found = _annotations_at(uri, format, columns)
        _say_problems(found, uri)
        return _truth_of_files(found, labels, uri)
    if uri.lower().endswith(ANNOTATION_SUFFIXES):
        raise ConfigError(
            f"{uri}: tables of annotations are read from this machine:\n"
            "copy them here, or give the prepared archive that was made with them"
        )
    return truth_of_split(open_prepared(uri), split or None)


def _truth_of_files(found: AnnotationSet, labels: LabelsConfig, uri: str) -> Truth:
    chosen = chosen_labels(found, labels)
    refuse_no_calls(found, chosen, uri)
    if any(chosen.counts[role] for role in chosen.counts if role != "call") or chosen.notes:
        print("\n".join(chosen.lines()), file=sys.stderr)
    paths = chosen.calls.annotated_paths
    unheard = unheard_parts(chosen.calls, dict.fromkeys(paths, ENDLESS_S), labels)
    parts = [Annotation(path, *gap) for path, gaps in unheard.items() for gap in gaps]
    ignored = events_from_annotations(AnnotationSet((*chosen.uncertain, *parts), paths))
    calls = events_from_annotations(chosen.calls)
    return Truth(calls, None, ignored if len(ignored) else None, "none")


def _refuse_split(uri: str, split: str) -> None:
    if split:
        raise ConfigError(f"--split {split} needs a prepared archive as --annotations, not {uri}")


def is_annotation_file(uri: str) -> bool:
    """Local annotation file, or a folder of them (and not of Parquet tables or a stage)."""
    if "://" in uri or uri.endswith(".parquet"):
        return False
    path = Path(uri)
    if not path.exists():
        raise DataError(f"{uri} does not exist: give a table of detections or annotations")
    if path.is_file():
        return True
    return not (path / "manifest.json").exists() and next(path.rglob("*.parquet"), None) is None
