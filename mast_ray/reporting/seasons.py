"""A season of recordings: pieces cut at full hours, with the calls that begin in each, and their cells by site and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.reporting.activity import Slots, cut_at_hours, local_start_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Season:
    """Recordings as pieces cut at full hours, and the detections counted into these pieces."""

    sites: list[str]
    site: Ints  # (P,) of each piece
    recording: Ints  # (P,)
    slot: Ints  # (P,) hours since the local epoch; -1 for recordings without a clock
    effort_s: Floats  # (P,)
    calls: Floats  # (P,)
    right: Floats | None  # (P,) calls that are right, as their probabilities say; None without probabilities
    piece_of_call: Ints  # (D,) -1: the call's recording is not in the table
    pieces: Slots


def season_of(recordings: pa.Table, detections: pa.Table) -> Season:
    start_s = local_start_s(recordings)
    duration_s = recordings.column("duration_s").to_numpy(zero_copy_only=False).astype(np.float64)
    timed = cut_at_hours(start_s, duration_s)
    lost = np.flatnonzero(~np.isfinite(start_s) & (duration_s > 0))
    none = np.full(len(lost), -1, np.int64)
    pieces = Slots(
        np.concatenate([timed.recording, lost]),
        np.concatenate([timed.slot, none]),
        np.concatenate([timed.begin_s, np.zeros(len(lost))]),
        np.concatenate([timed.end_s, duration_s[lost]]),
    )
    order = np.lexsort((pieces.begin_s, pieces.recording))
    pieces = Slots(pieces.recording[order], pieces.slot[order], pieces.begin_s[order], pieces.end_s[order])
    found = pc.index_in(detections.column("recording_id"), recordings.column("recording_id").combine_chunks())
    row = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    begin_s = np.maximum(detections.column("begin_s").to_numpy(zero_copy_only=False), 0.0)
    # Pieces lie on one line, recordings further apart than any is long: one search
    # finds the piece of every call.
    stride = float(duration_s.max(initial=0.0)) + float(begin_s.max(initial=0.0)) + 1.0
    line = pieces.recording * stride + pieces.begin_s
    piece = np.searchsorted(line, row * stride + begin_s + 1e-9, side="right") - 1
    fits = (row >= 0) & (piece >= 0)
    fits[fits] &= pieces.recording[piece[fits]] == row[fits]
    piece = np.where(fits, piece, -1)
    sites, site_of = np.unique(
        np.array(recordings.column("site").to_pylist(), dtype=object).astype(str), return_inverse=True
    )
    calls = np.bincount(piece[piece >= 0], minlength=len(pieces.slot)).astype(np.float64)
    probability = detections.column("probability")
    right = None
    if len(detections) and probability.null_count == 0:
        weights = probability.to_numpy()[piece >= 0].astype(np.float64)
        right = np.bincount(piece[piece >= 0], weights, minlength=len(pieces.slot)).astype(np.float64)
    return Season(
        [str(s) for s in sites],
        site_of[pieces.recording],
        pieces.recording,
        pieces.slot,
        pieces.effort_s,
        calls,
        right,
        piece,
        pieces,
    )


def cells_of(season: Season, key: Ints) -> list[tuple[int, int, Ints]]:
    """(site, key, pieces) of every pair that was recorded, in order; key -1 (no clock) is left out."""
    keep = np.flatnonzero(key >= 0)
    order = keep[np.lexsort((key[keep], season.site[keep]))]
    pair = np.stack([season.site[order], key[order]], axis=1)
    edges = (
        np.flatnonzero(np.any(np.diff(pair, axis=0) != 0, axis=1)) + 1
        if len(order)
        else np.zeros(0, np.int64)
    )
    return [(int(season.site[g[0]]), int(key[g[0]]), g) for g in np.split(order, edges) if len(g)]


def per_recording(recording: Ints, *values: Floats) -> list[Floats]:
    """Sums per recording of the pieces of one cell."""
    _, place = np.unique(recording, return_inverse=True)
    return [np.bincount(place, weights=v).astype(np.float64) for v in values]
