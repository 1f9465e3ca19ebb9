"""`mast embed`: the folder of embeddings and everything that is read off them.

OUT/embeddings.parquet   one row per chunk or box: recording, site, split, hour, seconds, hertz, label, cluster, map position, embedding
OUT/neighbours.parquet   the nearest rows of every row, never of its own recording
OUT/map.png              the 2-D map, coloured by site, hour, number of events or label
OUT/retrieval.json       boxes: retrieval top-1, top-5 and mean rank on oracle and detected boxes (the report shows it)
OUT/tentative_labels.csv, novelty.csv   boxes: zero-shot labels with abstention, clusters that resemble nothing known
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import csv_bytes, without_nan
from mast_ray.evaluation.similarity.clusters import map_2d, refuse_no_umap
from mast_ray.evaluation.similarity.retrieval import RETRIEVAL
from mast_ray.evaluation.whole_recordings import stitched_table
from mast_ray.inference.embeddings import (
    Background,
    What,
    load_embedder,
)
from mast_ray.models.detector import EmbeddingName
from mast_ray.reporting.detection_tables import conform, read_detections
from mast_ray.reporting.embedding_maps import Panel, map_figure
from mast_ray.reporting.figures import png_bytes
from mast_ray.stages.runner import HERE, Runner
from mast_ray.stages.score.embedding_parts import EmbedTask, embed_in_parts, parts_folder
from mast_ray.stages.score.embedding_studies import (
    Abstention,
    Boxes,
    boxes_of,
    cluster_rows,
    neighbour_table,
    retrieval_rows,
    tentative_labels,
    true_labels,
)
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.stage_run import StageRun, open_output, stage_run
from mast_ray.storage.storage import Storage, full_url
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared, write_table
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.data.archive_inputs import read_as

log = logging.getLogger("mast.embed")

STAGE = "embed"
NEIGHBOURS = "neighbours.parquet"
TENTATIVE, NOVELTY = OF_BOXES = ("tentative_labels.csv", "novelty.csv")


@dataclass(frozen=True)
class EmbedKnobs:
    """What is embedded and what is made of it."""

    what: What = "boxes"
    name: EmbeddingName = "encoder"
    detections: str = ""  # table of detections to embed beside the labels
    splits: tuple[str, ...] = ()  # empty: the whole archive
    threshold: float | None = None  # of the detections; None: the model's
    neighbours: int = 5
    map: Literal["tsne", "pca", "umap"] = "tsne"
    min_similarity: float = 0.5
    min_margin: float = 0.02
    min_members: int = 5
    background: Background = "keep"


def run_embed(
    config: Config, model: str, prepared: str, out: str, knobs: EmbedKnobs, *, runner: Runner = HERE
) -> dict[str, Any]:
    """Embed (in parts, where the runner has them done), study, draw; returns {"rows", "retrieval", "novelty"}."""
    refuse_no_umap(knobs.map)
    stage = open_output(out, STAGE, config.storage)
    embedder = load_embedder(model, knobs.name, config, knobs.background)
    archive = read_as(open_prepared(prepared, config.storage), embedder.card, model)
    key = text_hash(json.dumps(asdict(knobs), sort_keys=True))
    inputs = {"prepared": data_hash(archive), "model": embedder.card.weights_sha256}

    def embedded(events: pa.Table | None) -> pa.Table:
        facts = (inputs, knobs.what, knobs.name, knobs.background, knobs.splits)
        work = parts_folder(stage, facts, events)
        places = (full_url(model), archive.storage.url, work)
        task = EmbedTask(config, *places, knobs.what, knobs.name, knobs.background, knobs.splits)
        return embed_in_parts(task, embedder, archive, events, stage, runner)

    # the key does not name the content of the detections: never skipped
    with stage_run(stage, STAGE, config, key, inputs, when_done="again") as run:
        if knobs.what == "chunks":
            table = embedded(None)
            _begin_anew(run, (RETRIEVAL, *OF_BOXES))
            found: dict[str, Any] = {"retrieval": [], "novelty": []}
        else:
            labels = embedded(archive.labels)
            num_boxes = len(archive.labels)
            parts = [labels.append_column("origin", pa.array(["label"] * len(labels)))]
            truth: list[str] = []
            if knobs.detections:
                threshold = knobs.threshold if knobs.threshold is not None else embedder.card.score_threshold
                detections = _detections(archive, knobs.detections, threshold or 0.0)
                num_boxes += len(detections)
                own = embedded(detections)
                truth = true_labels(archive, own, detections, config)
                parts.append(own.append_column("origin", pa.array(["detection"] * len(own))))
            table = pa.concat_tables(parts, promote_options="permissive")
            if left_out := num_boxes - len(table):
                log.info(
                    "note: %d of %d boxes have no band or lie in other splits: left out", left_out, num_boxes
                )
            _begin_anew(run)
            table, found = _box_studies(stage, table, truth, knobs, config)
        log.info(
            "%d %s embedded in %d numbers",
            len(table),
            knobs.what,
            table.schema.field("embedding").type.list_size,
        )
        table = _add_map(stage, table, knobs, config)
        write_table(stage, "embeddings.parquet", table)
        if knobs.neighbours:
            write_table(stage, NEIGHBOURS, neighbour_table(boxes_of(table), knobs.neighbours))
        run.finish({"rows": len(table)})
    return {"rows": len(table)} | found


def _begin_anew(run: StageRun, not_made: Sequence[str] = ()) -> None:
    """What an earlier run left in the folder speaks of the rows of its own table: nothing of it may stay beside another."""
    run.begin_anew()
    for name in (NEIGHBOURS, *not_made):
        run.stage.delete(name)


def _detections(prepared: Prepared, uri: str, threshold: float) -> pa.Table:
    """Detections of whole recordings at or above the threshold; per-chunk ones are stitched."""
    table = read_detections(uri, threshold).select(DETECTIONS.names)
    foreign = int((prepared.rows_of(table.column("recording_id")) < 0).sum())
    if foreign and foreign == len(table):
        raise DataError(
            f"none of the {len(table):,} detections in {uri} is of a recording of {prepared.storage.url}:\n"
            "give what was detected in the recordings of this archive"
        )
    if foreign:
        log.info(
            "note: %d of %d detections are of recordings that the archive does not hold", foreign, len(table)
        )
    if table.column("chunk").null_count < len(table):
        return stitched_table(prepared, table)
    return conform(table, DETECTIONS, ("recording_id", "begin_s", "end_s", "score"), uri)


def _box_studies(
    stage: Storage, table: pa.Table, truth: Sequence[str], knobs: EmbedKnobs, config: Config
) -> tuple[pa.Table, dict[str, Any]]:
    """Retrieval, tentative labels and clusters of boxes; the table gains its clusters."""
    abstention = Abstention(knobs.min_similarity, knobs.min_margin)
    everything = boxes_of(table)
    is_label = np.array(pc.equal(table.column("origin"), "label").to_pylist(), bool)
    labels = everything.take(is_label)
    gallery = labels.take(labels.split == "train")
    retrieval = retrieval_rows(labels, gallery, "oracle", abstention)
    asked, rows = labels, np.flatnonzero(is_label)
    if truth:
        found = everything.take(~is_label)
        right = np.array([bool(name) for name in truth])
        matched = Boxes(found.vectors, tuple(truth), found.recording, found.split).take(right)
        retrieval += retrieval_rows(matched, gallery, "detected", abstention)
        asked, rows = found, np.flatnonzero(~is_label)
    stage.write_atomic(RETRIEVAL, json.dumps(without_nan(retrieval), indent=1).encode())
    place = table.drop_columns(["embedding"]).take(pa.array(rows)).to_pylist()
    names = ("path", "begin_s", "end_s", "low_hz", "high_hz")
    told = tentative_labels(asked, gallery, abstention)
    cells = [[row[n] for n in names] + list(one.values()) for row, one in zip(place, told, strict=True)]
    heads = (*names, "label", "nearest_label", "similarity", "margin")
    stage.write_atomic(TENTATIVE, csv_bytes(heads, cells))
    cluster, novelty = cluster_rows(asked, gallery, config, knobs.min_members)
    for one in novelty:
        example = one.pop("example_row")
        one |= {name: place[example][name] for name in names} | {"row": int(rows[example])}
    columns = ("cluster", "novelty", "num_members", "num_recordings", *names, "row")
    stage.write_atomic(NOVELTY, csv_bytes(columns, ([one[name] for name in columns] for one in novelty)))
    of_row = np.full(len(table), -1, np.int64)
    of_row[rows] = cluster
    return table.append_column("cluster", pa.array(of_row, pa.int32())), {
        "retrieval": retrieval,
        "novelty": novelty,
    }


def _add_map(stage: Storage, table: pa.Table, knobs: EmbedKnobs, config: Config) -> pa.Table:
    """The table with positions on the map (map_1, map_2), which is drawn as well."""
    places = map_2d(boxes_of(table).vectors, knobs.map, config.seed)

    def texts(name: str) -> list[str]:
        return [value or "" for value in table.column(name).to_pylist()]

    def numbers(name: str) -> np.ndarray:
        return np.array(pc.fill_null(table.column(name).cast(pa.float64()), float("nan")).to_numpy())

    panels = [Panel("by site", "category", texts("site")), Panel("by hour of day", "hour", numbers("hour"))]
    square = None
    if knobs.what == "chunks":
        panels.append(Panel("by annotated events (grey: nobody looked)", "count", numbers("num_events")))
    else:
        panels.append(Panel("by label (squares: annotated)", "category", texts("label")))
        square = np.array(pc.equal(table.column("origin"), "label").to_pylist(), bool)
    title = f"{knobs.map} of {len(table)} {knobs.what}, embedding: {knobs.name}"
    stage.write_atomic("map.png", png_bytes(map_figure(places, panels, square, title)))
    for number in range(2):
        table = table.append_column(f"map_{number + 1}", pa.array(places[:, number], pa.float32()))
    return table


def retrieval_text(rows: Sequence[dict[str, Any]]) -> str:
    """Retrieval figures for people."""
    lines = [
        f"{'boxes':<10}{'split':<16}{'queries':>8}{'labels':>8}{'top-1':>8}{'top-5':>8}{'mean rank':>11}{'labelled':>10}{'of them right':>15}"
    ]
    for row in rows:
        cells = [f"{row['top_1']:>8.3f}{row['top_5']:>8.3f}{row['mean_rank']:>11.2f}"]
        cells.append(f"{row['zero_shot_labelled']:>10.2f}{row['zero_shot_right']:>15.3f}")
        lines.append(
            f"{row['boxes']:<10}{row['split']:<16}{row['num_queries']:>8}{row['num_labels']:>8}"
            + "".join(cells)
        )
    whole = [row for row in rows if row["split"] == "all held-out"] or rows  # no such row for one split alone
    left_out = sum(row["num_without_example"] for row in whole)
    if left_out:
        lines.append(
            f"{left_out} queries have no example of their label in another recording of the train split: left out"
        )
    return "\n".join(lines)
