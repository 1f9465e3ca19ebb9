"""`mast summarise`: calls per hour with effort, diel activity and spectral
occupancy as CSV and Parquet tables.
"""

from __future__ import annotations

import argparse
import io
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.recordings.annotations.tabular import defused
from mast_ray.reporting.activity import ZONE_UNKNOWN, local_start_s
from mast_ray.reporting.detection_tables import (
    chosen_threshold,
    num_verdicts,
    of_run,
    read_detections,
    read_recordings,
    recordings_beside,
    searched_recordings,
    split_uri,
    stitched,
    zone_of,
)
from mast_ray.reporting.restating import restated
from mast_ray.reporting.summaries import BAND_EDGES_HZ, OF_LABELS, summarise
from mast_ray.storage.storage import open_storage
from mast_ray.tables.local_time import is_zone_unknown
from mast_ray.training.progress import ProgressLine
from mast_ray.verbs.restating_arguments import add_restating_arguments

READS_BUCKETS = True
HELP = "calls per hour, diel activity and spectral occupancy, per site and date, with 95 % intervals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("table", metavar="TABLE", help="detections: a Parquet file, or the folder that `mast detect` wrote")
    add(
        "--recordings",
        metavar="TABLE",
        help="recordings.parquet (or the folder that holds it): the effort (default: that of the detections' folder)",
    )
    add("--out", required=True, metavar="DIR", help="folder for the tables (local or s3://)")
    add(
        "--threshold",
        type=float,
        default=None,
        metavar="Q",
        help="count detections from this score on (default: the model's own threshold where `mast detect` knew it, else all)",
    )
    add(
        "--bands-hz",
        type=float,
        nargs="+",
        default=list(BAND_EDGES_HZ),
        metavar="HZ",
        help="edges of the frequency bands",
    )
    add_restating_arguments(parser)
    add("--seed", type=int, default=0, help="of the resampling behind the intervals")
    add("--bom", action="store_true", help="begin CSV files with a byte-order mark, for Excel")


def run(args: argparse.Namespace) -> int:
    edges_hz = tuple(args.bands_hz)
    if len(edges_hz) < 2 or not all(low < high for low, high in pairwise(edges_hz)):
        raise DataError(
            "--bands-hz must be at least two rising frequencies, e.g. --bands-hz 0 1000 2000 4000 8000"
        )
    if args.threshold is not None and not 0.0 <= args.threshold <= 1.0:
        raise ConfigError(f"--threshold {args.threshold} is no score: give a number between 0 and 1")
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: give a whole number from 0 on")
    args.table = of_run(args.table)
    split_uri(args.table)  # a place that is not there says nothing of its effort either
    source = args.recordings or recordings_beside(args.table)
    if source is None:
        raise DataError(
            f"{args.table} does not say what was recorded: give --recordings, the effort, as well"
        )
    recordings, in_part = searched_recordings(args.table, read_recordings(source, needs_lengths=True))
    recordings = restated(recordings, args.timezone, args.site_table, zone_of(args.table))
    detections = stitched(read_detections(args.table, chosen_threshold(args.threshold, args.table)))
    if len(recordings) == 0:
        raise DataError(f"{source} holds no recording: without effort there is no rate")
    _refuse_others(detections, recordings, args.table, source)
    line = ProgressLine()
    try:
        found = summarise(recordings, detections, args.seed, edges_hz, num_verdicts(args.table), line.show)
    finally:
        line.clear()
    tables = found.named()
    out = open_storage(args.out)
    for name, table in tables.items():
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        out.write_atomic(f"{name}.parquet", buffer.getvalue())
        out.write_atomic(f"{name}.csv", (b"\xef\xbb\xbf" if args.bom else b"") + csv_bytes(table))
    if not tables.keys() & set(OF_LABELS):  # those of other detections, which had names
        for name in OF_LABELS:
            out.delete(f"{name}.parquet")
            out.delete(f"{name}.csv")
    if "precision" in tables["calls_by_site"].column_names and num_verdicts(args.table) is None:
        print(
            "note: nothing says how many verdicts the probabilities come from: the limits of right_per_hour take them as known",
            file=sys.stderr,
        )
    if in_part:
        print(
            f"note: {in_part} of {len(recordings)} recordings were searched in part (other parts are in other splits): their whole "
            "length counts as effort",
            file=sys.stderr,
        )
    undated = int(np.isnan(local_start_s(recordings)).sum())
    if without_zone := int(is_zone_unknown(recordings).sum()):
        print(
            f"note: the hours and dates of {without_zone} recordings are {ZONE_UNKNOWN}: --timezone Region/City names it",
            file=sys.stderr,
        )
    if undated:
        print(
            f"note: {undated} of {len(recordings)} recordings have no clock: they count for no date and hour",
            file=sys.stderr,
        )
    hours = sum(tables["calls_by_site"].column("effort_h").to_pylist())
    print(f"{len(detections)} calls in {hours:.2f} recorded hours -> {', '.join(tables)} in {args.out}")
    return 0


def _refuse_others(detections: pa.Table, recordings: pa.Table, table: str, source: str) -> None:
    """Calls of recordings that the effort does not know would be counted
    nowhere, and every rate be too low.
    """
    heard = recordings.filter(pc.greater(recordings.column("duration_s"), 0.0))
    known = pc.is_in(detections.column("recording_id"), heard.column("recording_id").combine_chunks())
    if foreign := len(detections) - pc.sum(known, min_count=0).as_py():
        raise DataError(
            f"{foreign:,} of {len(detections):,} detections in {table} are of recordings that {source} does not list, or without a length:\n"
            "give the recordings of the same archive (those that `mast detect` wrote beside the detections)"
        )


def csv_bytes(table: pa.Table) -> bytes:
    """CSV with formulas defused in its text columns."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            safe = [None if text is None else defused(text) for text in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(safe, pa.string()))
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    return buffer.getvalue()
