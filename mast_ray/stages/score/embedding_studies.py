"""What a table of box embeddings says: retrieval on oracle and detected boxes, tentative labels,
clusters that resemble nothing known.

The gallery is the annotated boxes of the train split; a query never meets boxes
of its own recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.tree import Config
from mast_ray.evaluation.events import events_from_arrow, recordings_from_arrow
from mast_ray.evaluation.similarity.clusters import cluster_embeddings, novelty_queue
from mast_ray.evaluation.similarity.neighbours import nearest
from mast_ray.evaluation.similarity.retrieval import labels_of_detections, retrieval_figures, zero_shot_labels
from mast_ray.evaluation.whole_recordings import score_whole
from mast_ray.inference.embeddings import vectors_of
from mast_ray.tables.prepared import Prepared

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Abstention:
    """When a tentative label is not given: too far from any example, or hardly nearer
    to one label than to the next.
    """

    min_similarity: float = 0.5
    min_margin: float = 0.02


class Boxes(NamedTuple):
    """Rows of an embedded table as arrays."""

    vectors: NDArray[np.float32]
    label: tuple[str, ...]
    recording: NDArray[np.object_]
    split: NDArray[np.object_]

    def take(self, rows: Ints | NDArray[np.bool_]) -> Boxes:
        chosen = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        names = tuple(self.label[row] for row in chosen.tolist())
        return Boxes(self.vectors[chosen], names, self.recording[chosen], self.split[chosen])


def boxes_of(table: pa.Table) -> Boxes:
    """Arrays of an embedded table."""
    own = table.column("label").to_pylist() if "label" in table.column_names else [""] * len(table)
    return Boxes(
        vectors_of(table),
        tuple(name or "" for name in own),
        np.array(table.column("recording_id").to_pylist(), object),
        np.array(table.column("split").to_pylist(), object),
    )


def true_labels(prepared: Prepared, embedded: pa.Table, detections: pa.Table, config: Config) -> list[str]:
    """For every embedded detection the label of the annotation it matches one to one; ""
    where it is wrong or unlabelled.

    `detections` is the table of whole recordings whose rows the column `event` names.
    """
    # The matcher leaves rows out; the number that rides along as a label finds them again.
    numbers = pa.array([str(number) for number in range(len(detections))], pa.string())
    plain = detections.drop_columns([name for name in ("label",) if name in detections.column_names])
    numbered = plain.append_column("label", numbers)
    found = events_from_arrow(numbered, recordings_from_arrow(prepared.recordings))
    label_of: dict[int, str] = {}
    present = {name for name in prepared.splits.column("split").to_pylist() if name}
    for split in sorted(present):
        scored = score_whole(prepared, found, split, config)
        rows, labels = labels_of_detections(scored.matches, scored.truth.label.tolist())
        label_of |= dict(zip((int(n) for n in scored.detections.label[rows]), labels, strict=True))
    return [label_of.get(event, "") for event in embedded.column("event").to_pylist()]


def retrieval_rows(queries: Boxes, gallery: Boxes, kind: str, abstention: Abstention) -> list[dict[str, Any]]:
    """Figures per split of the queries and for all held-out ones together, as rows of a table."""
    splits = [name for name in dict.fromkeys(queries.split.tolist()) if name and name != "train"]
    groups = {name: queries.split == name for name in splits}
    if len(splits) > 1:
        groups["all held-out"] = np.isin(queries.split, splits)
    rows = []
    for name, chosen in groups.items():
        asked = queries.take(chosen)
        found = retrieval_figures(
            asked.vectors, asked.label, asked.recording, gallery.vectors, gallery.label, gallery.recording
        )
        if not found.num_queries and not found.num_without_example:
            continue
        given = zero_shot_labels(
            asked.vectors, gallery.vectors, gallery.label, abstention.min_similarity, abstention.min_margin,
            asked.recording, gallery.recording,
        ).label  # fmt: skip
        told = [(guess, truth) for guess, truth in zip(given, asked.label, strict=True) if truth]
        labelled = [guess == truth for guess, truth in told if guess]
        rows.append(
            {
                "boxes": kind,
                "split": name,
                "num_queries": found.num_queries,
                "num_without_example": found.num_without_example,
                "num_labels": found.num_labels,
                "top_1": found.top_1,
                "top_5": found.top_5,
                "mean_rank": found.mean_rank,
                "zero_shot_labelled": len(labelled) / len(told) if told else float("nan"),
                "zero_shot_right": float(np.mean(labelled)) if labelled else float("nan"),
            }
        )
    return rows


def tentative_labels(boxes: Boxes, gallery: Boxes, abstention: Abstention) -> list[dict[str, Any]]:
    """One row per box: its label, "" where the classifier abstains, and what it would have said."""
    found = zero_shot_labels(
        boxes.vectors, gallery.vectors, gallery.label, abstention.min_similarity, abstention.min_margin,
        boxes.recording, gallery.recording,
    )  # fmt: skip
    columns = zip(
        found.label, found.nearest_label, found.similarity.tolist(), found.margin.tolist(), strict=True
    )
    return [
        {"label": label, "nearest_label": near, "similarity": similarity, "margin": margin}
        for label, near, similarity, margin in columns
    ]


def neighbour_table(boxes: Boxes, k: int) -> pa.Table:
    """(N k) rows: row, rank (1 is nearest), neighbour (its row), similarity; never of the same recording."""
    found = nearest(boxes.vectors, boxes.vectors, k, boxes.recording, boxes.recording)
    num_rows = len(boxes.vectors)
    row, rank = np.repeat(np.arange(num_rows), k), np.tile(np.arange(1, k + 1), num_rows)
    there = found.row.reshape(-1) >= 0
    return pa.table(
        {
            "row": pa.array(row[there]),
            "rank": pa.array(rank[there], pa.int32()),
            "neighbour": pa.array(found.row.reshape(-1)[there]),
            "similarity": pa.array(found.similarity.reshape(-1)[there]),
        }
    )


def cluster_rows(
    boxes: Boxes, known: Boxes, config: Config, min_members: int = 5
) -> tuple[Ints, list[dict[str, Any]]]:
    """((N,) cluster of every row, the clusters least like any known example first with a row to listen to)"""
    cluster = cluster_embeddings(boxes.vectors, min_members=min_members, seed=config.seed)
    queue = novelty_queue(boxes.vectors, cluster, boxes.recording, known.vectors)
    rows = [
        {
            "cluster": one.cluster,
            "novelty": one.novelty,
            "num_members": one.num_members,
            "num_recordings": one.num_recordings,
            "example_row": one.example,
        }
        for one in queue
    ]
    return cluster, rows
