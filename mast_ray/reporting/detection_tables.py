"""Detections and recordings as other stages left them: a Parquet file, a folder of
them, or a stage with commits.

Whatever lies there is brought to schemas.DETECTIONS and schemas.RECORDINGS; further
columns (label, embedding) are kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.reading import ANNOTATION_SUFFIXES
from mast_ray.recordings.clock_and_site.sites import recordings_among
from mast_ray.recordings.decoding.faults import UnreadableRecording, reasons_text
from mast_ray.recordings.decoding.reading import ANY_RATE, probe
from mast_ray.reporting.clips import safe_key
from mast_ray.spectrogram.grid import middle_chunk
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import Storage, open_beside, open_storage
from mast_ray.storage.units import iter_commits
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS, SITE_KEY

_HIVE = re.compile(r"([^/=]+)=([^/]*)/")
STARTS = ("start_utc", "start_local")
OF_A_BOX = ("recording_id", "begin_s", "end_s", "score")
OF_CHUNKS = ("pseudo-label", "detect-chunks")  # stages that go through chunks of some splits
_NOT_DATA = ("recordings.parquet", "labels.parquet", "rejects.parquet", "splits.parquet", "metrics.parquet")


def parquet_keys(storage: Storage) -> list[str]:
    """The data files of a folder: those that commits name, else every Parquet file of boxes below it."""
    named, has_commits = [], False
    for commit in iter_commits(storage):  # of ten million recordings: not to be held
        has_commits = True
        named += [file.key for file in commit.files if file.key.endswith(".parquet")]
    if has_commits:
        refuse_unfinished(storage)
        return sorted(named)
    keys = (entry.key for entry in storage.list() if entry.key.endswith(".parquet"))
    return sorted(key for key in keys if key.rsplit("/", 1)[-1] not in _NOT_DATA)


def refuse_unfinished(storage: Storage) -> None:
    """A stage that was interrupted speaks of some recordings only, and names neither them nor the model's threshold."""
    if next(iter(storage.list("commit")), None) is not None and read_manifest(storage) is None:
        raise DataError(
            f"{storage.url} is unfinished:\n"
            "run the same `mast detect` (or which verb it was) again: it goes on where it was"
        )


def of_run(place: str) -> str:
    """The detections that a folder of `mast run` or `mast listen` holds; any other place is what it is."""
    if place.lower().endswith((".parquet", *ANNOTATION_SUFFIXES)):
        return place
    storage = open_storage(place)
    is_run = storage.stat("manifest.json") is None and storage.stat("detections/manifest.json") is not None
    return f"{place.rstrip('/')}/detections" if is_run else place


def split_uri(uri: str) -> tuple[Storage, list[str]]:
    """A file or a folder -> where it lies and which Parquet files it means."""
    if uri.endswith(".parquet"):
        storage, name = open_beside(uri)
        if storage.stat(name) is None:
            raise DataError(f"{uri} does not exist: give a Parquet table or a folder of them")
        return storage, [name]
    storage = open_storage(uri)
    if (local := storage.local_path("")) is not None and local.is_file():
        raise DataError(f"{uri} is no Parquet table: give the output of `mast detect` or one .parquet file")
    keys = parquet_keys(storage)
    if not keys:
        _refuse_all_rejected(storage, uri)
        raise DataError(
            f"{uri} holds no Parquet table: give the output of `mast detect` or one .parquet file"
        )
    return storage, keys


def _refuse_all_rejected(storage: Storage, uri: str) -> None:
    """A sweep that could not read any recording has no table, and says why."""
    rejects, manifest = "rejects.parquet", read_manifest(storage)
    if manifest is None or manifest.stage != "detect" or storage.stat(rejects) is None:
        return
    if reasons := read_parquet(storage, rejects).column("reason").to_pylist():
        raise DataError(
            f"{uri} holds no detections, all {len(reasons):,} recordings were rejected: {reasons_text(Counter(reasons))}\n"
            f"{storage.url}/{rejects} says why; mend these files, or give other recordings"
        )


def read_parquet(storage: Storage, key: str) -> pa.Table:
    """One file; columns that its folders name (site=Danum/) are added when it lacks them."""
    filesystem, root = storage.arrow()
    with filesystem.open_input_file(f"{root.rstrip('/')}/{key}") as file:
        try:
            table = pq.ParquetFile(file).read()
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's word, not Parquet's
            raise DataError(
                f"{storage.url}/{key} is no whole Parquet table:\n"
                "copy it again, or run the command that wrote it once more"
            ) from error
    for name, value in _HIVE.findall(key):
        if name not in table.column_names:
            whole = (table.schema.metadata or {}).get(SITE_KEY) if name == "site" else None
            text = unquote(value) if whole is None else whole.decode()
            table = table.append_column(name, pa.array([text] * len(table), pa.string()))
    return table


def conform(table: pa.Table, schema: pa.Schema, required: Iterable[str], source: str) -> pa.Table:
    """Columns of `schema` in its types (null where absent), then the table's other columns. Every box has what is required
    of one, and none ends before it begins: one such box would leave all others uncounted.
    """
    missing = [name for name in required if name not in table.column_names]
    if missing:
        raise DataError(
            f"{source} has no column {', '.join(missing)}: it holds {', '.join(table.column_names)}\n"
            "give the table that `mast detect` or `mast prepare` wrote"
        )
    columns = {
        field.name: _cast(table.column(field.name), field, source)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in schema
    }
    for name in (name for name in OF_A_BOX if name in required):
        if without := columns[name].null_count:
            raise DataError(
                f"{source} has {without:,} of {len(table):,} rows without {name}: leave them out, or fill it in"
            )
    if {"begin_s", "end_s"} <= set(required):
        back = pc.sum(pc.less(columns["end_s"], columns["begin_s"]), min_count=0).as_py()
        if back:
            raise DataError(
                f"{source} has {back:,} of {len(table):,} rows whose end_s is before their begin_s: leave them out, or swap them"
            )
    columns |= {
        name: table.column(name) for name in table.column_names if name not in columns and name != "date"
    }
    return pa.table(columns)


def _cast(column: pa.ChunkedArray, field: pa.Field, source: str) -> pa.ChunkedArray:
    """A column in its type; what is not a number is missing."""
    try:
        column = column.cast(field.type)
    except pa.ArrowException as error:
        raise DataError(
            f"{source} has values in its column {field.name} that are no {field.type}: {error}\n"
            "correct these values"
        ) from error
    if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
        return pc.if_else(pc.is_nan(column), pa.scalar(None, field.type), column)
    return column


def read_detections(uri: str, threshold: float | None = None) -> pa.Table:
    """All detections at or above a score."""
    storage, keys = split_uri(uri)
    parts = []
    for key in keys:
        part = read_parquet(storage, key)
        part = conform(part, DETECTIONS, OF_A_BOX, f"{storage.url}/{key}")
        parts.append(
            part if threshold is None else part.filter(pc.greater_equal(part.column("score"), threshold))
        )
    table = pa.concat_tables(parts, promote_options="permissive")
    site = pc.fill_null(table.column("site"), "")
    return table.set_column(table.column_names.index("site"), "site", site)


def chosen_threshold(wanted: float | None, uri: str) -> float | None:
    """What the user asked for, or else the threshold of the model that made the table, said aloud."""
    if wanted is not None:
        return wanted
    threshold = model_threshold(uri)
    if threshold is not None:
        print(f"scores of at least {threshold:.4f}, the model's own threshold (--threshold 0 keeps all)")
    elif "model_threshold" in _manifest(uri).get("counts", {}):
        print(
            "all scores: the model has no threshold of its own, because none could be tuned on validation "
            "(--threshold Q keeps those of at least Q)"
        )
    return threshold


def model_threshold(uri: str) -> float | None:
    """The threshold of the model behind a folder of `mast detect`, as its manifest
    says; None where nothing does.
    """
    value = _manifest(uri).get("counts", {}).get("model_threshold")
    return float(value) if isinstance(value, int | float) else None


def num_verdicts(uri: str) -> int | None:
    """How many verdicts the probabilities of a folder of `mast detect` come from; None where nothing says so."""
    value = _manifest(uri).get("counts", {}).get("calibration_verdicts")
    return value if isinstance(value, int) and value > 0 else None


def zone_given(manifest: Mapping[str, Any]) -> str:
    """The zone that a stage was told for clocks without one; "" where it was told none."""
    value = ((manifest.get("config") or {}).get("audio") or {}).get("timezone")
    return value if isinstance(value, str) else ""


def zone_of(uri: str) -> str:
    """That of the stage that wrote a folder of detections."""
    return zone_given(_manifest(uri))


def model_sha_of(uri: str) -> str:
    """The weights behind a folder of `mast detect`; "" where nothing says so."""
    return str(_manifest(uri).get("inputs", {}).get("model", ""))


def _manifest(uri: str) -> dict[str, Any]:
    """The manifest of a folder of detections, as it stands; {} where there is none."""
    if uri.endswith(".parquet"):
        return {}
    try:
        manifest = json.loads(open_storage(uri).read_bytes("manifest.json"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def read_recordings(uri: str, needs_lengths: bool = False) -> pa.Table:
    """A recordings table: the file itself, or recordings.parquet of a stage folder. Who counts hours or shows windows
    needs the length of every one.
    """
    storage, key = open_storage(uri), "recordings.parquet"
    if uri.endswith(".parquet"):
        storage, key = open_beside(uri)
    if storage.stat(key) is None:
        raise DataError(f"{storage.url}/{key} does not exist: give recordings.parquet of a prepared archive")
    table = conform(read_parquet(storage, key), RECORDINGS, ("recording_id", "path", "duration_s"), uri)
    if twice := len(table) - pc.count_distinct(table.column("recording_id")).as_py():
        raise DataError(
            f"{uri} lists {twice:,} of its {len(table):,} recordings a second time, so their hours would count twice:\n"
            "list every recording once"
        )
    if needs_lengths and (without := table.column("duration_s").null_count):
        raise DataError(
            f"{uri} has {without:,} of {len(table):,} recordings without duration_s, their length:\n"
            "fill it in, or leave these recordings out"
        )
    return table.set_column(table.column_names.index("site"), "site", pc.fill_null(table.column("site"), ""))


def recordings_beside(uri: str) -> str | None:
    """Where the recordings of a folder of detections stand, when they stand in it."""
    if uri.endswith(".parquet"):
        return None
    storage = open_storage(uri)
    if storage.stat("recordings.parquet") is None:
        refuse_unfinished(storage)
        return None
    return uri


def searched_recordings(uri: str, recordings: pa.Table) -> tuple[pa.Table, int]:
    """(Those of the recordings that a folder of detections of single chunks speaks of, how many of them were searched in
    part only): a pool is not the whole archive. As they are, and 0, where the folder says nothing of the kind.
    """
    if _manifest(uri).get("stage") not in OF_CHUNKS:
        return recordings, 0
    chunks: Counter[str] = Counter()
    for commit in iter_commits(open_storage(uri)):
        for outcome in commit.outcomes:
            name, begin, end = outcome.item_id.rsplit("-", 2)
            if outcome.status == "done":
                chunks[name] += int(end) - int(begin)
    recordings = recordings.filter(pc.is_in(recordings.column("recording_id"), pa.array(chunks, pa.string())))
    pairs = zip(
        *(recordings.column(name).to_pylist() for name in ("recording_id", "num_chunks")), strict=True
    )
    return recordings, sum(chunks[name] < (total or 0) for name, total in pairs)


def stitched(detections: pa.Table) -> pa.Table:
    """Per-chunk detections without the doubles of overlapping chunks: a box stays with the
    chunk in whose middle half it lies.
    """
    if detections.column("chunk").null_count == len(detections):
        return detections
    chunk = pc.fill_null(detections.column("chunk"), -1).to_numpy(zero_copy_only=False)
    begin_s, end_s = (detections.column(c).to_numpy(zero_copy_only=False) for c in ("begin_s", "end_s"))
    nearest = middle_chunk((begin_s + end_s) / 2)
    return detections.filter(pa.array((chunk < 0) | (chunk == nearest)))


def with_paths(detections: pa.Table, recordings: pa.Table | None) -> pa.Table:
    """Detections whose path, site and absolute time are taken from the recordings where they are missing."""
    if recordings is None:
        return detections
    for name, own, said in said_twice(detections, recordings, ("path", "site", "utc_offset_s", *STARTS)):
        if name == "site":  # "" is none
            own = pc.if_else(pc.equal(own, ""), pa.scalar(None, own.type), own)
        filled = pc.coalesce(own, said)
        filled = pc.fill_null(filled, "") if name == "site" else filled
        detections = with_column(detections, name, filled)
    return detections


def said_twice(
    detections: pa.Table, recordings: pa.Table, names: Sequence[str]
) -> Iterator[tuple[str, pa.ChunkedArray, pa.Array]]:
    """For every name what the detections say of it, and what their recordings say; times of both are those of the detection."""
    row = pc.index_in(detections.column("recording_id"), recordings.column("recording_id").combine_chunks())
    begin = durations(detections.column("begin_s"))
    for name in names:
        said = recordings.column(name).combine_chunks().take(row)
        said = pc.add(said, begin) if name in STARTS else said
        has_own = name in detections.column_names
        own = detections.column(name) if has_own else pa.chunked_array([pa.nulls(len(detections), said.type)])
        yield name, own, said.cast(own.type)


def with_column(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    """The table with a column in its old place, or at the end."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def durations(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Seconds to the nearest microsecond: a cast alone would cut 8.2 s to 8,199,999 us."""
    micros = pc.round(pc.multiply(seconds.cast(pa.float64()), 1e6))
    return pc.cast(micros, pa.int64(), safe=False).cast(pa.duration("us"))


def recordings_of_audio(detections: pa.Table, audio: Storage) -> pa.Table:
    """A recordings table from the headers of the audio files: those of the detections, and those without one that lie
    beside them (times of a whole site run on through these too). Unreadable ones are left out.
    """
    first = detections.select(["recording_id", "path", "site", "utc_offset_s"])
    rows = {row["path"]: row for row in first.group_by(["path"], use_threads=False).aggregate(
        [("recording_id", "first"), ("site", "first"), ("utc_offset_s", "first")]).to_pylist()}  # fmt: skip
    paths = set(rows)
    sites: dict[str, set[str]] = {}
    for path, row in rows.items():
        sites.setdefault(path.rpartition("/")[0], set()).add(row["site_first"] or "")
    for path in recordings_among(entry.key for entry in audio.list()):
        own = sites.get(path.rpartition("/")[0], set())
        if path not in rows and len(own) == 1:
            rows[path] = {"recording_id_first": "", "site_first": next(iter(own)), "utc_offset_s_first": None}
    found = []
    for path, row in sorted(rows.items()):
        try:
            with audio.open_read(safe_key(path, audio)) as file:
                info = probe(file, limits=ANY_RATE)
        except (UnreadableRecording, OSError):
            continue
        found.append(
            {
                "recording_id": row["recording_id_first"], "path": path, "site": row["site_first"] or "",
                "utc_offset_s": row["utc_offset_s_first"], "duration_s": info.duration_s, "sample_rate_hz": info.sample_rate_hz,
                "num_channels": info.num_channels, "num_bytes": info.num_bytes,
            }
        )  # fmt: skip
    if paths and paths.isdisjoint(row["path"] for row in found):
        raise DataError(
            f"none of the recordings with detections lies in {audio.url} (e.g. {min(paths)}):\n"
            "give the folder that was searched, from which these paths lead on"
        )
    return pa.Table.from_pylist(found, schema=RECORDINGS)


def with_headers(recordings: pa.Table, headers: pa.Table) -> pa.Table:
    """Recordings with the lengths and rates of `recordings_of_audio`; sites and times stay. Files that only the headers
    know were not searched: that nothing was found in them says nothing.
    """
    row = pc.index_in(recordings.column("path"), headers.column("path").combine_chunks())
    for name in ("duration_s", "sample_rate_hz", "num_channels", "num_bytes"):
        read = pc.coalesce(headers.column(name).combine_chunks().take(row), recordings.column(name))
        recordings = recordings.set_column(recordings.column_names.index(name), name, read)
    return recordings
