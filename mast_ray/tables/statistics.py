"""Normalisation statistics of a pool, from the sums the index keeps per segment:
no spectrogram is read again.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES, fractional_hops
from mast_ray.spectrogram.normalisation import Moments


def pool_moments(index: pa.Table, recordings: pa.Table, splits: pa.Table) -> Moments:
    """Moments over the valid frames of all segments that lie in blocks marked in_pool, each segment once."""
    ids = recordings.column("recording_id").combine_chunks()
    row_of = lambda column: pc.index_in(column, value_set=ids).to_numpy(zero_copy_only=False)  # noqa: E731
    pool = splits.filter(splits.column("in_pool"))
    first_of, count_of = _segment_ranges(recordings)
    in_pool = np.zeros(int(count_of.sum()), bool)
    rows = row_of(pool.column("recording_id")).astype(np.int64)
    begin_s, end_s = pool.column("begin_s").to_numpy(), pool.column("end_s").to_numpy()
    duration_s = recordings.column("duration_s").to_numpy()[rows]
    # a block takes the segments that begin inside it: each segment belongs to one block of a recording
    first = np.ceil(np.round(fractional_hops(begin_s), 6)).astype(np.int64)
    stop = np.where(
        end_s >= duration_s - 1e-6,
        count_of[rows],
        np.ceil(np.round(fractional_hops(end_s), 6)).astype(np.int64),
    )
    for row, a, b in zip(rows.tolist(), first.tolist(), stop.tolist(), strict=True):
        in_pool[first_of[row] + a : first_of[row] + min(b, int(count_of[row]))] = True

    pieces = row_of(index.column("recording_id")).astype(np.float64)
    known = np.flatnonzero(~np.isnan(pieces))
    index, pieces = index.take(pa.array(known)), pieces[known].astype(np.int64)
    counts = index.column("num_segments").to_numpy().astype(np.int64)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    segment = np.repeat(index.column("segment").to_numpy().astype(np.int64), counts) + place
    recording = np.repeat(pieces, counts)
    wanted = in_pool[first_of[recording] + segment]
    frames = recordings.column("num_frames").to_numpy().astype(np.int64)[recording]
    valid = np.clip(frames - segment * SEGMENT_FRAMES, 0, SEGMENT_FRAMES)[wanted]
    sums = pc.list_flatten(index.column("value_sum")).to_numpy()[wanted]
    squares = pc.list_flatten(index.column("square_sum")).to_numpy()[wanted]
    count = int(valid.sum()) * NUM_BINS
    if not count:
        return Moments()
    mean = float(sums.sum()) / count
    return Moments(count, mean, max(0.0, float(squares.sum()) - count * mean * mean))


def _segment_ranges(recordings: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    chunks = recordings.column("num_chunks").to_numpy().astype(np.int64)
    count = np.where(chunks > 0, chunks + 1, 0)
    return np.cumsum(count) - count, count
