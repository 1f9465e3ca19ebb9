"""Whatever was found in a run folder -> ReportData. Missing files leave their section out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.errors import DataError
from mast_ray.evaluation.label_budget import CURVES, curves_from_json
from mast_ray.evaluation.score_sheet import METRICS
from mast_ray.reporting.activity import DielMap, diel_map
from mast_ray.reporting.detection_tables import read_parquet, stitched, zone_given
from mast_ray.reporting.report.collect_labels import labels_table
from mast_ray.reporting.report.collect_provenance import clock_warnings, effort_of, facts_of, stages_table
from mast_ray.reporting.report.collect_scores import Scores, scores_of_model, scores_of_table, units_of
from mast_ray.reporting.report.collect_sheets import matches_of, shown_sheet
from mast_ray.reporting.report.collect_studies import (
    budget_series,
    is_figure,
    models_table,
    round_series,
    rows_table,
    sheet_tables,
    table_of,
    trials_of,
)
from mast_ray.reporting.report.contents import (
    Cell,
    Example,
    Histogram,
    Interval,
    ReportData,
    ResultTable,
)
from mast_ray.reporting.report.found_files import ROW_TABLES, Found, find_files
from mast_ray.reporting.report.gallery import GallerySettings, build_gallery, channel_of_run
from mast_ray.reporting.restating import restated, with_times_of
from mast_ray.reporting.summaries import summarise_sites
from mast_ray.self_training.round_records import ROUNDS, flat, rounds_of
from mast_ray.self_training.trial_records import TRIALS
from mast_ray.storage.storage import Storage

MOST_SITES = 24


def collect_run(
    run: Storage,
    audio: Storage | None = None,
    detections: pa.Table | None = None,
    threshold: float | None = None,
    title: str = "",
    now: datetime | None = None,
    num_examples: int = 200,
    zone: str = "",
    site_table: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> ReportData:
    """The whole report of a run folder; a zone and a table of sites say anew when and where it was recorded. `say` hears
    how far it is.
    """
    say("report: reading the tables")
    found = find_files(run, detections)
    if (zone or site_table) and found.recordings is not None:
        recordings = restated(found.recordings, zone, site_table, _zone_given(found.manifests))
        own = found.detections if found.detections is None else with_times_of(found.detections, recordings)
        found = replace(found, recordings=recordings, detections=own)
    if not (
        found.manifests
        or found.cards
        or found.side
        or found.sheets
        or found.recordings is not None
        or found.detections is not None
    ):
        raise DataError(f"{run.url} holds nothing to report on: give a folder that a mast verb wrote")
    if (zone or site_table) and found.recordings is None:
        raise DataError(
            f"{run.url} has no recordings whose times and sites --timezone and --table could restate:\n"
            "leave them out, or report on the folder that `mast detect` or `mast prepare` wrote"
        )
    if threshold is None:
        threshold = _detect_threshold(found.manifests) if detections is None else None
    if threshold is None:
        threshold = _card_threshold(found.cards)
    shown = shown_sheet(found.sheets, found.detections)
    say("report: scores")
    scores = _scores(run, found, shown, threshold)
    kept = _kept(found.detections, scores.threshold)
    warnings = [*found.warnings, *scores.warnings]
    diel: tuple[DielMap, ...] = ()
    sites: ResultTable | None = None
    labels: tuple[ResultTable, ...] = ()
    if found.recordings is not None and kept is not None and len(found.recordings):
        say(f"report: sites, dates and hours of {len(found.recordings):,} recordings")
        diel, sites = _diel(found.recordings, kept), sites_table(found.recordings, kept)
        labels = tuple(table for table in (labels_table(found.recordings, kept),) if table is not None)
        warnings += clock_warnings(found.recordings)
    gallery_note = ""
    examples: tuple[Example, ...] = ()
    if (
        audio is not None
        and found.detections is not None
        and found.recordings is not None
        and num_examples > 0
    ):
        settings = GallerySettings(
            num_examples, threshold=scores.threshold or 0.0, channel=channel_of_run(found.manifests)
        )
        built = build_gallery(found.detections, found.labels, found.recordings, audio, settings, say)
        examples, gallery_note = built.examples, built.note
    studies = _studies(run, found, shown)
    effort = effort_of(found.recordings, found.rejects)
    headline: list[tuple[str, Cell]] = []
    if effort is not None:
        headline.append(("hours analysed", f"{effort.hours_analysed:,.1f}"))
        headline.append(("recordings analysed", f"{effort.num_analysed:,} of {effort.num_offered:,}"))
    if kept is not None:
        headline.append(
            ("detections at the threshold" if scores.threshold is not None else "detections", len(kept))
        )
    headline += scores.headline
    if scores.threshold is not None:
        headline.append(("threshold", f"{scores.threshold:.2f}"))
    data = ReportData(
        title=title or run.url.rstrip("/").rpartition("/")[2] or "run",
        summary=_summary(found),
        made_at=f"Made on {now:%Y-%m-%d %H:%M} UTC" if now else "",
        facts=facts_of(found.manifests, found.cards, found.recordings, found.detections, scores.threshold),
        stages=stages_table(found.manifests),
        effort=effort,
        headline=tuple(headline),
        tables=(
            *scores.tables[:1],
            *studies.pop("models"),
            *scores.tables[1:],
            *labels,
            *studies.pop("tables"),
        ),
        curves=scores.curves,
        threshold=scores.threshold,
        overlap=scores.overlap,
        reliability=scores.reliability,
        scores=_score_histogram(found.detections),
        analysed_hours_of_scores=effort.hours_analysed if effort else None,
        sites=sites,
        diel=diel,
        examples=examples,
        examples_note=gallery_note,
        warnings=tuple(warnings),
        **studies,
    )
    return replace(data, units=units_of(data, bool(scores.tables), is_by_chunk=shown is not None))


def _scores(run: Storage, found: Found, shown: str | None, threshold: float | None) -> Scores:
    """Scores of the model as they were made, else of its detections against the labels in the run."""
    if shown is not None:
        scored, warnings = matches_of(run, found.manifests, shown, found.sheets[shown].splits)
        return replace(scores_of_model(found.sheets[shown], scored), warnings=warnings)
    tables = (found.detections, found.labels, found.recordings)
    if any(table is None for table in tables) or not len(found.labels):  # type: ignore[arg-type]
        return Scores(threshold=threshold)
    return scores_of_table(*tables, found.splits, threshold, found.ignored)  # type: ignore[arg-type]


def _detect_threshold(manifests: dict[str, dict[str, Any]]) -> float | None:
    """The own threshold of the model whose detections are reported."""
    values = [
        m.get("counts", {}).get("model_threshold") for m in manifests.values() if m.get("stage") == "detect"
    ]
    return next((float(v) for v in values if is_figure(v)), None)


def _zone_given(manifests: dict[str, dict[str, Any]]) -> str:
    """The zone of clocks without one, by the stage that detected, else by the one that prepared."""
    said = {str(m.get("stage")): zone_given(m) for m in manifests.values()}
    return said.get("detect", said.get("prepare", ""))


def _card_threshold(cards: dict[str, dict[str, Any]]) -> float | None:
    values = [card.get("score_threshold") for card in cards.values() if card.get("kind") == "detector"]
    return next((float(v) for v in reversed(values) if is_figure(v)), None)


def _kept(detections: pa.Table | None, threshold: float | None) -> pa.Table | None:
    if detections is None:
        return None
    whole = stitched(detections)
    return whole if threshold is None else whole.filter(pc.greater_equal(whole.column("score"), threshold))


def _score_histogram(detections: pa.Table | None) -> Histogram | None:
    if detections is None or len(detections) == 0:
        return None
    counts, edges = np.histogram(stitched(detections).column("score").to_numpy(), np.linspace(0.0, 1.0, 51))
    return Histogram(tuple(np.round(edges, 4).tolist()), tuple(counts.tolist()))


def sites_table(recordings: pa.Table, detections: pa.Table) -> ResultTable:
    """Recordings, hours, calls and rate of each site, with the days between its first and
    last on which nothing was recorded.
    """
    by_site, days = summarise_sites(recordings, detections)
    rows = []
    for row in by_site.to_pylist():
        own = days.get(row["site"], [])
        gaps = (max(own) - min(own)).days + 1 - len(set(own)) if own else None
        ends = (str(min(own)), str(max(own))) if own else ("–", "–")
        rate = Interval(row["calls_per_hour"], row["low_95"], row["high_95"])
        name = row["site"] or "(no site)"
        rows.append((name, row["num_recordings"], row["effort_h"], row["calls"], rate, *ends, gaps))
    columns = ("site", "recordings", "hours", "detections", "per hour", "first", "last", "days without sound")
    return ResultTable(
        "Sites",
        columns,
        tuple(rows),
        "Below each rate its 95 % interval, by resampling recordings; without a call, by Poisson.",
    )


def _diel(recordings: pa.Table, detections: pa.Table) -> tuple[DielMap, ...]:
    names = [None, *sorted(set(recordings.column("site").to_pylist()))[:MOST_SITES]]
    return tuple(one for name in names if (one := diel_map(recordings, detections, name)) is not None)


def _summary(found: Found) -> str:
    names = [m.get("stage", "?") for m in found.manifests.values()]
    return f"Stages in this folder: {', '.join(dict.fromkeys(names))}." if names else ""


def _studies(run: Storage, found: Found, shown: str | None) -> dict[str, Any]:
    """Keyword arguments of ReportData from the side tables."""
    side = {name: (keys[0], run.read_bytes(keys[0])) for name, keys in found.side.items()}
    out: dict[str, Any] = {"models": models_table(found.sheets)}
    if ROUNDS in side and (rounds := rounds_of(side[ROUNDS][1])):
        out |= {
            "rounds": table_of("Rounds", [flat(row) for row in rounds]),
            "round_curves": round_series(rounds),
        }
    if CURVES in side:
        out["label_budget"] = budget_series(curves_from_json(side[CURVES][1]))
    if TRIALS in side:
        out["trials"] = trials_of(read_parquet(run, side[TRIALS][0]).to_pylist())
    tables = [rows_table(title, side[name][1]) for name, title in ROW_TABLES.items() if name in side]
    own = [
        (folder, sheet) for folder, sheet in found.sheets.items() if folder != shown and not sheet.model_sha
    ]
    out["tables"] = (
        *(table for table in tables if table is not None),
        *(table for folder, sheet in own for table in sheet_tables(sheet, folder or METRICS)),
    )
    return out
