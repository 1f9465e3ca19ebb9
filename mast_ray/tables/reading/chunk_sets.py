"""Which chunks a stage works on, and the boxes they hold: joined when a batch is read,
never stored with spectrograms.

Legend: N chunks, K boxes. A chunk is (row of its recording, k); its id is "<recording_id>:<k>".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.config.errors import DataError
from mast_ray.spectrogram.chunking import boxes_of_chunks
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES, boxes_from_seconds_hertz, fractional_frames
from mast_ray.tables.dealing.splits import chunk_ranges
from mast_ray.tables.prepared import Prepared

EDGE_FRAMES = (
    12  # a remnant of a region at the border of a chunk, and the frames that straddle a recording's end
)
DRAWN_AT_ONCE = 24  # neighbouring chunks, about two minutes
MOST_DRAWS = 1_000_000  # of a huge set longer stretches are drawn
TimeOnly = Literal["ignore", "teach"]


@dataclass(frozen=True, eq=False)
class ChunkSet:
    """Chunks of a prepared archive, ordered by recording and place; weights go into the detection loss."""

    recording: NDArray[np.int32]  # (N,) row of prepared.recordings
    chunk: NDArray[np.int32]  # (N,)
    weight: NDArray[np.float32]  # (N,)

    def __len__(self) -> int:
        return len(self.recording)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> ChunkSet:
        return ChunkSet(self.recording[rows], self.chunk[rows], self.weight[rows])

    def ids(self, prepared: Prepared) -> list[str]:
        names = prepared.recording_ids
        return [f"{names[r]}:{k}" for r, k in zip(self.recording.tolist(), self.chunk.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class ChunkRuns:
    """Stretches of neighbouring chunks, ordered and apart: chunks `first` to `first + count - 1` of a recording. Five
    billion chunks of ten million recordings are ten million of them.
    """

    recording: NDArray[np.int64]  # (R,) row of prepared.recordings
    first: NDArray[np.int64]  # (R,)
    count: NDArray[np.int64]  # (R,)

    def __len__(self) -> int:
        """The number of chunks."""
        return int(self.count.sum())

    def chunks(self) -> ChunkSet:
        """All of them, one by one."""
        num_chunks = len(self)
        place = np.arange(num_chunks) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        return ChunkSet(
            np.repeat(self.recording, self.count).astype(np.int32),
            (np.repeat(self.first, self.count) + place).astype(np.int32),
            np.ones(num_chunks, np.float32),
        )


def merged_runs(
    recording: NDArray[np.int64], first: NDArray[np.int64], count: NDArray[np.int64]
) -> ChunkRuns:
    """Runs of stretches in any order; those that overlap or touch become one."""
    order = np.lexsort((first, recording))
    order = order[count[order] > 0]
    recording, first, end = recording[order], first[order], (first + count)[order]
    reached = np.maximum.accumulate(pair_keys(recording, end))  # the furthest end so far, within a recording
    is_new = np.ones(len(order), bool)
    is_new[1:] = pair_keys(recording, first)[1:] > reached[:-1]
    starts = np.flatnonzero(is_new)
    last = np.append(starts[1:], len(order))[: len(starts)] - 1
    ends = pairs_of(reached[last])[1]
    return ChunkRuns(recording[starts], first[starts], ends - first[starts])


def common_runs(some: ChunkRuns, others: ChunkRuns) -> ChunkRuns:
    """The stretches that lie in runs of both."""
    begin, end = pair_keys(some.recording, some.first), pair_keys(some.recording, some.first + some.count)
    other_begin = pair_keys(others.recording, others.first)
    other_end = pair_keys(others.recording, others.first + others.count)
    low = np.searchsorted(
        other_end, begin, side="right"
    )  # the first of the others that ends behind the beginning
    high = np.maximum(np.searchsorted(other_begin, end, side="left"), low)
    of = np.repeat(np.arange(len(begin)), high - low)
    other = np.concatenate([np.zeros(0, np.int64), *map(np.arange, low, high)])
    first = np.maximum(begin[of], other_begin[other])
    recording, number = pairs_of(first)
    return ChunkRuns(recording, number, np.minimum(end[of], other_end[other]) - first)


def drawn_runs(runs: ChunkRuns, most: int, seed: int) -> ChunkRuns:
    """Stretches of about two minutes, drawn at random until they hold `most` chunks or a few more; 0: all there are."""
    if not 0 < most < len(runs):
        return runs
    length = max(DRAWN_AT_ONCE, -(-len(runs) // MOST_DRAWS))
    pieces = -(-runs.count // length)
    of = np.repeat(np.arange(len(pieces)), pieces)
    begin = (np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
    count = np.minimum(length, runs.count[of] - begin)
    order = np.random.default_rng([seed, 11]).permutation(len(of))
    drawn = order[: np.searchsorted(np.cumsum(count[order]), most) + 1]
    of = of[drawn]
    return merged_runs(runs.recording[of], runs.first[of] + begin[drawn], count[drawn])


def chunks_of_split(prepared: Prepared, *names: str) -> ChunkSet:
    """Chunks wholly inside the blocks of the named splits; the name "pool" means
    every block marked in_pool.
    """
    return runs_of_split(prepared, *names).chunks()


def runs_of_split(prepared: Prepared, *names: str) -> ChunkRuns:
    """The same as stretches."""
    splits = prepared.splits
    wanted = pc.is_in(
        splits.column("split"), value_set=pa.array([n for n in names if n != "pool"], pa.string())
    )
    if "pool" in names:
        wanted = pc.or_(wanted, splits.column("in_pool"))
    blocks = splits.filter(wanted)
    if not len(blocks):
        known = sorted({n for n in pc.unique(splits.column("split")).to_pylist() if n} | {"pool"})
        raise DataError(
            f"{prepared.storage.url} has nothing in {' or '.join(names)}: it has {', '.join(known)}\n"
            + (
                "deal the recordings again with `mast split`"
                if len(prepared.labels)
                else "nothing in it is annotated: give annotations to `mast prepare`"
            )
        )
    return runs_of_blocks(
        prepared,
        prepared.rows_of(blocks.column("recording_id")),
        blocks.column("begin_s").to_numpy(),
        blocks.column("end_s").to_numpy(),
    )


def chunks_of_blocks(
    prepared: Prepared, rows: NDArray[np.int64], begin_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> ChunkSet:
    """Chunks that lie in time blocks of recordings; the audio of a padded chunk
    must, its padding need not.
    """
    return runs_of_blocks(prepared, rows, begin_s, end_s).chunks()


def runs_of_blocks(
    prepared: Prepared, rows: NDArray[np.int64], begin_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> ChunkRuns:
    """The same as stretches."""
    keep = rows >= 0
    rows, begin_s, end_s = rows[keep], begin_s[keep], end_s[keep]
    duration_s = prepared.recordings.column("duration_s").to_numpy()[rows]
    first, counts = chunk_ranges(begin_s, end_s, duration_s, prepared.num_chunks[rows])
    return merged_runs(rows, first, counts)  # blocks that overlap name a chunk twice


def pair_keys(first: NDArray[np.integer], second: NDArray[np.integer]) -> NDArray[np.int64]:
    """(N,) one number per pair of numbers below 2^31, ordered by the first and then by the second."""
    return first.astype(np.int64) << 32 | second.astype(np.int64)


def pairs_of(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inverse of pair_keys."""
    return keys >> 32, keys & 0xFFFFFFFF


def keys_of(chunks: ChunkSet) -> NDArray[np.int64]:
    """(C,) one number per chunk, ordered by recording and place."""
    return pair_keys(chunks.recording, chunks.chunk)


@dataclass(frozen=True, eq=False)
class BoxTable:
    """Boxes of the chunks of a set, grouped by chunk: those of chunk i are rows start[i] to start[i + 1]."""

    start: NDArray[np.int64]  # (N + 1,)
    corners: NDArray[np.float32]  # (K, 4) frames and bins of the chunk
    is_ignored: NDArray[
        np.bool_
    ]  # (K,) neither call nor background: uncertain, doubted by a teacher, or never gone through
    is_time_only: NDArray[np.bool_]  # (K,) a call is there, its band is unknown
    label_row: NDArray[np.int64]  # (K,) row of the labels table; -1 for an ignored region
    score: NDArray[np.float32]  # (K,) 1 for expert labels
    time_only: TimeOnly = "ignore"  # what calls without a band teach

    @property
    def teaches(self) -> NDArray[np.bool_]:
        """(K,) whether a box is an object of the detection loss."""
        return ~self.is_ignored & ~(self.is_time_only & (self.time_only == "ignore"))

    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.start)

    def padded(self, chunks: NDArray[np.int64], slot_multiple: int = 8) -> PaddedBoxes:
        """Boxes of some chunks of the set as the model takes them: what pad_boxes
        gives, without a loop over chunks.
        """
        counts = self.start[chunks + 1] - self.start[chunks]
        most = int(counts.max(initial=0))
        slots = max(slot_multiple, -(-most // slot_multiple) * slot_multiple)
        corners = np.zeros((len(chunks), slots, 4), np.float32)
        is_object = np.zeros((len(chunks), slots), bool)
        is_ignored = np.zeros((len(chunks), slots), bool)
        if most:
            row = np.repeat(np.arange(len(chunks)), counts)
            slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
            box = np.repeat(self.start[chunks], counts) + slot
            teaches = self.teaches
            order = np.lexsort((slot, ~teaches[box], row))  # objects first
            box = box[order]
            corners[row, slot] = self.corners[box]
            is_ignored[row, slot] = self.is_ignored[box] | self.is_time_only[box]
            is_object[row, slot] = teaches[box]
        return PaddedBoxes(
            torch.from_numpy(corners), torch.from_numpy(is_object), torch.from_numpy(is_ignored)
        )


def box_table(
    prepared: Prepared,
    chunks: ChunkSet,
    labels: pa.Table | None,
    min_remnant_s: float = 0.1,
    ignored: pa.Table | None = None,
) -> BoxTable:
    """Join a labels (or pseudo-labels, or detections) table to a set of chunks, and regions to ignore with them.

    A row with a `chunk` was found by a model in that chunk: it joins it alone, and keeps its
    fractions of frames and bins. Any other is an annotation: put on whole frames and bins, it joins
    every chunk it touches, clipped. All recordings are laid on one time line, two hops apart, so that
    one vectorised call cuts every box.
    """
    num_labels = 0 if labels is None else len(labels)
    if ignored is not None and len(ignored):
        labels = _with_regions(labels, ignored)
    if labels is None or not len(labels):
        return _no_boxes(len(chunks))
    rows = prepared.rows_of(labels.column("recording_id"))
    score = pc.fill_null(labels.column("score"), 1.0).to_numpy().astype(np.float32)
    low_hz, high_hz = (labels.column(name).to_numpy().astype(np.float64) for name in ("low_hz", "high_hz"))
    no_band = np.isnan(low_hz) | np.isnan(high_hz)
    own_chunk = np.full(len(labels), -1, np.int64)
    if "chunk" in labels.column_names:
        own_chunk = pc.fill_null(labels.column("chunk"), -1).to_numpy().astype(np.int64)
    measures = (
        labels.column("begin_s").to_numpy(),
        labels.column("end_s").to_numpy(),
        np.where(no_band, 1000.0, low_hz),
        np.where(no_band, 2000.0, high_hz),
    )
    boxes, representable = boxes_from_seconds_hertz(*measures)
    is_found = own_chunk >= 0
    if is_found.any():
        boxes[is_found] = boxes_from_seconds_hertz(*measures, rounding="none")[0][is_found]
    boxes[no_band, 1], boxes[no_band, 3] = 0, NUM_BINS
    is_doubted = np.zeros(len(labels), bool)  # pseudo-labels between two thresholds
    if "is_ignored" in labels.column_names:
        is_doubted = pc.fill_null(labels.column("is_ignored"), False).to_numpy()
    kept = np.flatnonzero(representable & (rows >= 0) & (score >= 0.0))
    boxes, rows = boxes[kept], rows[kept]

    first_hop = np.concatenate(([0], np.cumsum(prepared.num_chunks + 2)))
    end_frame = (prepared.num_chunks[rows] + 1) * SEGMENT_FRAMES
    inside = (boxes[:, 0] < end_frame) & (boxes[:, 2] > 0)
    boxes, rows, kept, end_frame = boxes[inside], rows[inside], kept[inside], end_frame[inside]
    boxes[:, 2] = np.minimum(boxes[:, 2], end_frame)
    boxes[:, 0] = np.maximum(boxes[:, 0], 0)
    boxes[:, 0::2] += (first_hop[rows] * SEGMENT_FRAMES)[:, None]
    cut = boxes_of_chunks(boxes, int(first_hop[-1]), float(fractional_frames(min_remnant_s)))

    wanted = first_hop[chunks.recording] + chunks.chunk
    order = np.argsort(wanted, kind="stable")
    place = np.searchsorted(wanted[order], cut.chunk)
    place = np.minimum(place, max(len(wanted) - 1, 0))
    # A box of one recording may reach into a neighbour's first hop on the time line: origins must agree.
    found = (wanted[order][place] == cut.chunk) & (chunks.recording[order][place] == rows[cut.origin])
    own = own_chunk[kept][cut.origin]
    found &= (own < 0) | (own == cut.chunk - first_hop[rows[cut.origin]])
    of_chunk = order[place[found]]
    by_chunk = np.argsort(of_chunk, kind="stable")
    origin = kept[cut.origin[found]][by_chunk]
    start = np.concatenate(([0], np.cumsum(np.bincount(of_chunk, minlength=len(chunks)))))
    corners = cut.corners[found][by_chunk].astype(np.float32)
    is_region = origin >= num_labels
    label_row = np.where(is_region, -1, origin)
    is_ignored = is_region | is_doubted[origin]
    return BoxTable(start, corners, is_ignored, no_band[origin] & ~is_ignored, label_row, score[origin])


def heard_chunks(prepared: Prepared, chunks: ChunkSet) -> ChunkSet:
    """Chunks without those of which nothing was gone through and that hold no call: they would teach nothing."""
    unheard = prepared.ignored.filter(pc.equal(prepared.ignored.column("why"), "not_gone_through"))
    if not len(unheard):
        return chunks
    table = box_table(prepared, chunks, prepared.labels, ignored=unheard)
    of_chunk = np.repeat(np.arange(len(chunks)), table.counts())
    length = (table.corners[:, 2] - table.corners[:, 0]) * table.is_ignored
    covered = np.bincount(of_chunk, length, minlength=len(chunks))
    calls = np.bincount(of_chunk, ~table.is_ignored, minlength=len(chunks))
    first_frame = chunks.chunk.astype(np.int64) * SEGMENT_FRAMES
    valid = (prepared.num_frames[chunks.recording] - first_frame).clip(0, 2 * SEGMENT_FRAMES)
    return chunks.take((calls > 0) | (covered < valid - EDGE_FRAMES))


def _with_regions(labels: pa.Table | None, ignored: pa.Table) -> pa.Table:
    """Labels followed by ignored regions, which have no score and belong to no chunk in particular."""
    names = ["recording_id", "begin_s", "end_s", "low_hz", "high_hz"]
    if labels is None:
        labels = ignored.slice(0, 0)
    names += [name for name in ("score", "chunk") if name in labels.column_names]
    merged = pa.concat_tables([labels.select(names), ignored.select(names[:5])], promote_options="default")
    if "score" not in names:
        merged = merged.append_column("score", pa.nulls(len(merged), pa.float32()))
    return merged


def _no_boxes(num_chunks: int) -> BoxTable:
    return BoxTable(
        np.zeros(num_chunks + 1, np.int64),
        np.zeros((0, 4), np.float32),
        np.zeros(0, bool),
        np.zeros(0, bool),
        np.zeros(0, np.int64),
        np.zeros(0, np.float32),
    )
