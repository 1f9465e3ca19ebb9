"""The local time of recordings and detections, from whatever their tables know of it.

`start_local` is the clock on the recorder's wall: it is known where the zone is, and also where nobody named a zone. Tables
of before it was kept have start_utc and utc_offset_s.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def local_seconds(table: pa.Table, unknown_offset: Literal["utc", "unknown"] = "unknown") -> Floats:
    """(N,) local seconds since 1970 of each row's start; NaN where no clock is known.

    Where UTC is known and the offset is not, there is no local time ("unknown"), or UTC stands for it ("utc").
    """
    nothing = np.full(len(table), np.nan)
    utc, clock = (
        _seconds(table.column(name)) if _is_time(table, name) else nothing
        for name in ("start_utc", "start_local")
    )
    local = utc + _numbers(table, "utc_offset_s", np.nan)
    local = np.where(np.isnan(local), clock, local)
    return np.where(np.isnan(local), utc, local) if unknown_offset == "utc" else local


def _is_time(table: pa.Table, name: str) -> bool:
    return name in table.column_names and pa.types.is_timestamp(table.schema.field(name).type)


def is_zone_unknown(table: pa.Table) -> NDArray[np.bool_]:
    """(N,) whether a row has a local clock and nobody knows its zone."""
    if not (_is_time(table, "start_local") and _is_time(table, "start_utc")):
        return np.zeros(len(table), bool)
    return np.isfinite(_seconds(table.column("start_local"))) & np.isnan(_seconds(table.column("start_utc")))


def _seconds(column: pa.ChunkedArray) -> Floats:
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return np.array(pc.fill_null(micros.cast(pa.float64()), float("nan")).to_numpy(), np.float64) / 1e6


def _numbers(table: pa.Table, name: str, missing: float) -> Floats:
    if name not in table.column_names:
        return np.full(len(table), missing)
    return np.array(pc.fill_null(table.column(name).cast(pa.float64()), missing).to_numpy(), np.float64)
