"""Summary tables with effort: calls per hour, diel activity and spectral occupancy, per site and date, and calls of
every label where detections have names, with intervals.

Every rate is a ratio of two sums over recordings (calls over recorded hours, occupied over recorded seconds).
Its interval comes from drawing the recordings of the cell again with replacement: calls of one recording are
not independent. One recording leaves nothing to draw from: its interval is null. Drawing recordings without a call again is
not certainty either: there recordings with calls come at random (Poisson), each with as many calls as those of the table have
on average. Hours and dates are local (see activity.py). Calls with a calibrated
probability also give right calls per hour, and the verdicts behind the probabilities widen the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from itertools import count, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.evaluation.intervals import LEVEL, drawn_weights, widened_tail
from mast_ray.reporting.activity import (
    HOUR_S,
    ZONE_UNKNOWN,
    slot_date,
)
from mast_ray.reporting.seasons import Floats, Ints, Season, cells_of, per_recording, season_of
from mast_ray.spectrogram.grid import HIGH_HZ
from mast_ray.tables.local_time import is_zone_unknown

BAND_EDGES_HZ = (0.0, 500.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0)
OF_LABELS = ("calls_by_label", "calls_by_label_and_hour")  # where detections have names
DRAWS_PER_BLOCK = 2_000_000
NUM_RESAMPLES = 1000
MOST_UNSEEN = -math.log((1 - LEVEL) / 2)  # 3.69: none is seen of as many expected ones in 2.5 % of all cases


@dataclass(frozen=True)
class Summaries:
    """The tables that `mast summarise` writes."""

    by_site: pa.Table
    by_site_and_date: pa.Table
    by_site_and_hour: pa.Table
    occupancy: pa.Table  # per site, date and band
    by_label: pa.Table | None = None  # per site and label; None where detections have no names
    by_label_and_hour: pa.Table | None = None  # per site, label and hour

    def named(self) -> dict[str, pa.Table]:
        of_labels = dict(zip(OF_LABELS, (self.by_label, self.by_label_and_hour), strict=True))
        return {name: table for name, table in of_labels.items() if table is not None} | {
            "calls_by_site": self.by_site,
            "calls_by_site_and_date": self.by_site_and_date,
            "diel_activity": self.by_site_and_hour,
            "spectral_occupancy": self.occupancy,
        }


def ratio_intervals(
    above: Floats,
    below: Floats,
    rng: np.random.Generator,
    num_resamples: int = NUM_RESAMPLES,
    factor: Floats | None = None,
) -> list[tuple[float | None, float | None]]:
    """Percentile intervals of sum(above[k]) / sum(below) over redrawn units, for (K,
    R) and (R,) values of R units.

    Widened for few units as in evaluation/intervals.py. All K ratios share the same
    draws. None for a ratio of 0. `factor` (num_resamples,) are draws of what every ratio is to be multiplied by.
    """
    size = len(below)
    if size < 2 or below.sum() <= 0:
        return [(None, None)] * len(above)
    per_block = max(1, DRAWS_PER_BLOCK // size)
    ratios = []
    for start in range(0, num_resamples, per_block):
        rows = min(per_block, num_resamples - start)
        weights = drawn_weights(rng, rows, size)
        total = weights @ below
        ratio = (weights @ above.T)[total > 0] / total[total > 0, None]  # (rows, K)
        ratios.append(ratio if factor is None else ratio * factor[start : start + rows][total > 0, None])
    tail = widened_tail(size)
    low, high = np.quantile(np.concatenate(ratios), [tail, 1 - tail], axis=0)
    return [
        (float(x), float(y)) if total > 0 else (None, None)
        for x, y, total in zip(low, high, above.sum(axis=1), strict=True)
    ]


def mean_of_some(values: Iterable[Floats]) -> float | None:
    """Mean of what is above 0; None where nothing is."""
    every = np.concatenate([np.zeros(0), *values])
    some = every[every > 0]
    return float(some.mean()) if len(some) else None


RATES = ("num_recordings", "effort_h", "calls", "calls_per_hour", "low_95", "high_95")
RIGHT = ("precision", "right_per_hour", "right_low_95", "right_high_95")


def _rates(
    season: Season, cells: list[tuple[int, int, Ints]], rng: np.random.Generator, num_verdicts: int | None
) -> dict[str, list]:
    """Columns num_recordings, effort_h, calls, calls_per_hour with limits, for cells of pieces; where calls have a
    probability also what is right of them.
    """
    names = RATES if season.right is None else RATES + RIGHT
    out: dict[str, list] = {name: [] for name in names}
    counted = (season.effort_s, season.calls, *(() if season.right is None else (season.right,)))
    sums = [per_recording(season.recording[group], *(one[group] for one in counted)) for _, _, group in cells]
    # calls of one recording come together: where none came it is recordings with calls that were not met
    most = [MOST_UNSEEN * (mean_of_some(own) or 1.0) for own in list(zip(*sums))[1:]]
    for effort_s, calls, *right in sums:
        effort_h = effort_s / HOUR_S
        low, high = ratio_intervals(calls[None], effort_h, rng)[0]
        if not calls.any():
            low, high = 0.0, most[0] / effort_h.sum()
        row: tuple[float | None, ...] = (
            len(calls),
            effort_h.sum(),
            int(calls.sum()),
            calls.sum() / effort_h.sum(),
            low,
            high,
        )
        if right:
            row += _right_rates(calls, right[0], effort_h, rng, num_verdicts, most[1])
        for name, value in zip(out, row, strict=True):
            out[name].append(value)
    return out


def _right_rates(
    calls: Floats, right: Floats, effort_h: Floats, rng: np.random.Generator, num_verdicts: int | None, most: float
) -> tuple[float | None, ...]:  # fmt: skip
    """Precision of a cell's calls, right calls per hour and their limits; `most` right ones may be there where none was met.

    Two things are uncertain: which recordings there are, and the precision, which is known from some verdicts only (a beta
    distribution of that many). Each draw takes both.
    """
    if not calls.any():
        return None, 0.0, 0.0, most / effort_h.sum()
    precision = float(right.sum() / calls.sum())
    factor = None
    if num_verdicts and precision > 0:
        seen = rng.beta(num_verdicts * precision + 0.5, num_verdicts * (1 - precision) + 0.5, NUM_RESAMPLES)
        factor = seen / precision
    limits = ratio_intervals(right[None], effort_h, rng, NUM_RESAMPLES, factor=factor)[0]
    return precision, float(right.sum() / effort_h.sum()), *limits


def _occupancy(
    season: Season, detections: pa.Table, cells: list[tuple[int, int, Ints]], edges_hz: tuple[float, ...],
    rng: np.random.Generator, heard_hz: Floats,
) -> pa.Table:  # fmt: skip
    """Share of recorded time in which a band holds at least one call. Recordings that end below a band (`heard_hz`, (R,))
    are no effort there: its share is null where all do.
    """
    columns = [
        detections.column(c).to_numpy(zero_copy_only=False) for c in ("begin_s", "end_s", "low_hz", "high_hz")
    ]
    begin_s, end_s, low_hz, high_hz = (np.asarray(c, np.float64) for c in columns)
    num_pieces = len(season.slot)
    rows: dict[str, list] = {
        name: []
        for name in (
            "site",
            "date",
            "low_hz",
            "high_hz",
            "effort_h",
            "occupied_s",
            "share",
            "low_95",
            "high_95",
        )
    }
    bands = list(pairwise(edges_hz))
    lows = np.array([low for low, _ in bands])
    occupied = [
        _occupied_s(season, begin_s, end_s, (low_hz < high) & (high_hz > low), num_pieces)
        for low, high in bands
    ]
    every = [
        per_recording(season.recording[group], season.effort_s[group], *(one[group] for one in occupied))
        for _, _, group in cells
    ]
    typical_s = mean_of_some(busy_s for sums in every for busy_s in sums[1:])  # of a band with calls
    for (site, day, group), sums in zip(cells, every, strict=True):
        effort_s, busy_s = sums[0], np.stack(sums[1:])  # (R,), (bands, R)
        hears = heard_hz[np.unique(season.recording[group])] > lows[:, None]  # (bands, R)
        limits = ratio_intervals(busy_s, effort_s, rng)
        for number, ((low, high), seconds) in enumerate(zip(bands, busy_s.sum(axis=1), strict=True)):
            ends, band_s = limits[number], effort_s[hears[number]]
            if not hears[number].all():
                ends = ratio_intervals(busy_s[number : number + 1, hears[number]], band_s, rng)[0]
            share = seconds / band_s.sum() if len(band_s) else None
            if share == 0 and typical_s is not None:
                ends = 0.0, min(MOST_UNSEEN * typical_s / band_s.sum(), 1.0)
            line = (season.sites[site], slot_date(day * 24), low, high, band_s.sum() / HOUR_S, seconds)
            for name, value in zip(rows, (*line, share, *ends), strict=True):
                rows[name].append(value)
    return pa.table(
        rows,
        schema=pa.schema(
            [("site", pa.string()), ("date", pa.date32())] + [(n, pa.float64()) for n in list(rows)[2:]]
        ),
    )


def _occupied_s(
    season: Season, begin_s: Floats, end_s: Floats, inside: NDArray[np.bool_], num_pieces: int
) -> Floats:
    """(P,) seconds of each piece covered by the union of the chosen boxes; a box that runs
    on counts in every piece it meets.
    """
    rows = np.flatnonzero(inside & (season.piece_of_call >= 0))
    first = season.piece_of_call[rows]
    begin, end = np.maximum(begin_s[rows], 0.0), end_s[rows]
    parts_piece, parts_begin, parts_end = [], [], []
    piece = first
    while len(rows):
        stop = np.minimum(end, season.pieces.end_s[piece])
        parts_piece.append(piece)
        parts_begin.append(np.maximum(begin, season.pieces.begin_s[piece]))
        parts_end.append(stop)
        following = np.minimum(piece + 1, num_pieces - 1)
        goes_on = (end > season.pieces.end_s[piece] + 1e-9) & (piece + 1 < num_pieces)
        goes_on &= season.recording[following] == season.recording[piece]
        rows, begin, end, piece = rows[goes_on], begin[goes_on], end[goes_on], following[goes_on]
    if not parts_piece:
        return np.zeros(num_pieces)
    owner, begin, end = np.concatenate(parts_piece), np.concatenate(parts_begin), np.concatenate(parts_end)
    order = np.lexsort((begin, owner))
    owner, begin, end = owner[order], begin[order], end[order]
    # Union of intervals: what a box adds is its length beyond the furthest end so far in its piece.
    stride = float(end.max()) + 1.0
    reach = np.maximum.accumulate(end + owner * stride)
    before = np.concatenate([[-np.inf], reach[:-1]]) - owner * stride
    added = np.maximum(end - np.maximum(begin, before), 0.0)
    return np.bincount(owner, weights=added, minlength=num_pieces).astype(np.float64)


def _heard_hz(recordings: pa.Table, detections: pa.Table) -> Floats:
    """(R,) frequency up to which each recording was searched: half its rate, and no further than detectors look."""
    rate_hz = pc.fill_null(recordings.column("sample_rate_hz"), np.iinfo(np.int32).max)
    highest_hz = pc.max(detections.column("high_hz")).as_py() or 0.0
    return np.minimum(rate_hz.to_numpy() / 2.0, HIGH_HZ if highest_hz <= HIGH_HZ else np.inf)


def _clocks(recordings: pa.Table, season: Season, cells: list[tuple[int, int, Ints]]) -> list[str]:
    """Whose clock the hours and dates of each cell are: local, local with its zone unknown, or UTC."""
    has_offset = np.array(pc.is_valid(recordings.column("utc_offset_s")).to_pylist(), bool)
    kind = np.where(is_zone_unknown(recordings), ZONE_UNKNOWN, np.where(has_offset, "local", "UTC"))
    return [" and ".join(sorted(set(kind[season.recording[group]].tolist()))) for _, _, group in cells]


def summarise(
    recordings: pa.Table,
    detections: pa.Table,
    seed: int = 0,
    band_edges_hz: tuple[float, ...] = BAND_EDGES_HZ,
    num_verdicts: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Summaries:
    """All summary tables; recordings without a clock count for their site, but for no date and no hour. `say` hears how
    far it is.

    Where every call has a probability, the tables also say how many are right; `num_verdicts` is how many judgements
    these probabilities come from.
    """
    season = season_of(recordings, detections)
    rng = np.random.default_rng(seed)
    day = np.where(season.slot >= 0, season.slot // 24, -1)
    hour = np.where(season.slot >= 0, season.slot % 24, -1)
    by_site = cells_of(season, np.zeros(len(season.slot), np.int64))
    by_date, by_hour = cells_of(season, day), cells_of(season, hour)
    of_label = _seasons_of_labels(season, detections)
    done = count()

    def table(
        cells: list[tuple[int, int, Ints]], season: Season = season, label: str | None = None, **keys: list
    ) -> pa.Table:
        say(f"summarise: {next(done):,} of {3 + 2 * len(of_label):,} tables of rates")
        return _table(recordings, season, cells, rng, num_verdicts, label, **keys)

    hours = [key for _, key, _ in by_hour]
    return Summaries(
        by_site=table(by_site),
        by_site_and_date=table(by_date, date=[slot_date(key * 24) for _, key, _ in by_date]),
        by_site_and_hour=table(by_hour, hour=hours),
        occupancy=_occupancy(
            season, detections, by_date, band_edges_hz, rng, _heard_hz(recordings, detections)
        ),
        by_label=_joined([table(by_site, own, label) for label, own in of_label.items()]),
        by_label_and_hour=_joined(
            [table(by_hour, own, label, hour=hours) for label, own in of_label.items()]
        ),
    )


def summarise_sites(
    recordings: pa.Table, detections: pa.Table, seed: int = 0
) -> tuple[pa.Table, dict[str, list[date]]]:
    """`Summaries.by_site` alone, and the dates on which every site was recorded."""
    season = season_of(recordings, detections)
    by_site = cells_of(season, np.zeros(len(season.slot), np.int64))
    days: dict[str, list[date]] = {}
    for site, day, _ in cells_of(season, np.where(season.slot >= 0, season.slot // 24, -1)):
        days.setdefault(season.sites[site], []).append(slot_date(day * 24))
    return _table(recordings, season, by_site, np.random.default_rng(seed)), days


def summarise_labels(
    recordings: pa.Table, detections: pa.Table, seed: int = 0
) -> tuple[pa.Table, dict[str, int]] | None:
    """Calls of every label over all sites as in `Summaries.by_label`, and the hour each calls most in; None without names."""
    nowhere = pa.array([""] * len(recordings), pa.string())
    recordings = recordings.set_column(recordings.column_names.index("site"), "site", nowhere)
    season = season_of(recordings, detections)
    of_label = _seasons_of_labels(season, detections)
    if not of_label:
        return None
    rng = np.random.default_rng(seed)
    whole = cells_of(season, np.zeros(len(season.slot), np.int64))
    by_hour = cells_of(season, np.where(season.slot >= 0, season.slot % 24, -1))
    effort_s = [season.effort_s[group].sum() for _, _, group in by_hour]
    busiest = {
        label: max(
            (own.calls[group].sum() / seconds, hour)
            for (_, hour, group), seconds in zip(by_hour, effort_s, strict=True)
        )[1]
        for label, own in (of_label if by_hour else {}).items()
    }
    tables = [_table(recordings, own, whole, rng, label=label) for label, own in of_label.items()]
    return pa.concat_tables(tables), busiest


def _table(
    recordings: pa.Table, season: Season, cells: list[tuple[int, int, Ints]], rng: np.random.Generator,
    num_verdicts: int | None = None, label: str | None = None, **keys: list,
) -> pa.Table:  # fmt: skip
    """Rates of cells, with what names them."""
    names = {"site": pa.array([season.sites[site] for site, _, _ in cells], pa.string())}
    if label is not None:
        names["label"] = pa.array([label] * len(cells), pa.string())
    typed = {n: pa.array(v, pa.date32() if n == "date" else pa.int32()) for n, v in keys.items()}
    rates = _rates(season, cells, rng, num_verdicts)
    whole = ("num_recordings", "calls")
    return pa.table(
        names
        | typed
        | {n: pa.array(v, pa.int64() if n in whole else pa.float64()) for n, v in rates.items()}
        | ({"clock": pa.array(_clocks(recordings, season, cells), pa.string())} if keys else {})
    )


def _seasons_of_labels(season: Season, detections: pa.Table) -> dict[str, Season]:
    """Label -> the same effort with the calls of that label alone; nothing where detections have no names."""
    if "label" not in detections.column_names:
        return {}
    label = np.array([name or "" for name in detections.column("label").to_pylist()], object)
    found = {}
    for name in sorted(set(label.tolist()) - {""}):
        own = season.piece_of_call[(label == name) & (season.piece_of_call >= 0)]
        calls = np.bincount(own, minlength=len(season.slot)).astype(np.float64)
        # a probability is that of a call, whatever its name
        found[name] = replace(season, calls=calls, right=None)
    return found


def _joined(tables: list[pa.Table]) -> pa.Table | None:
    return pa.concat_tables(tables) if tables else None
