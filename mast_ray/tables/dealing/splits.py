"""Who trains, who validates, who tests, and what may enter the pool: one small table, dealt by seed.

A row is a block of a recording in seconds; whole recordings are one block. Only annotated recordings
have a split name; everything else is pool. Audio of validation, test and OOD recordings enters the pool
only when `transductive` says so; what a held-out site has besides its tested recordings may join by
`ood_pool`. Changing a split rewrites no spectrogram: normalisation statistics
come from the sums kept in the index.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError
from mast_ray.config.tree import SplitConfig
from mast_ray.spectrogram.grid import CHUNK_S, FRAME_SHIFT_S, fractional_hops, seconds_of_hops
from mast_ray.tables.dealing.bonds import Recording, bound_together, keys_of
from mast_ray.tables.local_time import local_seconds
from mast_ray.tables.schemas import SPLITS

DEALT = ("train", "val", "test")  # by share
HELD_OUT = ("val", "test", "site_ood", "temporal_ood", "ood_dev")
_SLACK_S = FRAME_SHIFT_S  # rounding of times is no reason to lose a chunk
LONG_S = 1200.0  # a recording of 20 minutes has two blocks of ten and can be dealt in blocks


class BlockRow(NamedTuple):
    """One row of splits.parquet."""

    recording_id: str
    begin_s: float
    end_s: float
    split: str
    in_pool: bool


def recordings_of(table: pa.Table) -> list[Recording]:
    """Rows of recordings.parquet."""
    names = ["recording_id", "site", "duration_s", "num_chunks", "is_annotated", "fingerprint"]
    if "group" in table.column_names:
        names.append("group")
    local_s = local_seconds(table, unknown_offset="utc")
    known = np.isfinite(local_s)
    dates = np.where(known, np.nan_to_num(local_s), 0).astype("datetime64[s]").astype(str)
    return [
        Recording(local_date=date[:10] if is_known else "", **row | {"group": row.get("group") or ""})
        for row, date, is_known in zip(
            table.select(names).to_pylist(), dates.tolist(), known.tolist(), strict=True
        )
    ]


def paths_of(table: pa.Table) -> dict[str, str]:
    """Recording id -> path, of recordings.parquet."""
    ids, paths = (table.column(name).to_pylist() for name in ("recording_id", "path"))
    return dict(zip(ids, paths, strict=True))


def deal_splits(
    recordings: list[Recording], knobs: SplitConfig, seed: int, before: Sequence[BlockRow] = ()
) -> list[BlockRow]:
    """Deal every recording; the same recordings, knobs and seed give the same table.

    What was dealt `before` stays where it is, and new recordings fill up the shares: an archive may grow, and nothing that
    a model was trained on is ever tested.
    """
    check_settings(knobs)
    check_sites({recording.site for recording in recordings}, knobs)
    check_dates(recordings, knobs)
    fixed: dict[str, BlockRow] = {}
    free: list[Recording] = []
    for recording in recordings:
        name = _out_of_domain(recording, knobs)
        if name:
            fixed[recording.recording_id] = _held_out(recording, name, knobs)
        elif recording.is_annotated:
            free.append(recording)
    dealt: dict[str, list[BlockRow]] = defaultdict(list)
    if free:
        is_free = {recording.recording_id for recording in free}
        kept = [row for row in before if row.recording_id in is_free and row.split in DEALT]
        for row in _dealt(free, knobs, np.random.default_rng([seed, 5]), kept):
            dealt[row.recording_id].append(row)
    rows: list[BlockRow] = []
    for recording in recordings:
        rid, end_s = recording.recording_id, recording.duration_s
        if rid in dealt:
            rows.extend(dealt[rid])
        elif rid in fixed:
            rows.append(fixed[rid])
        else:
            rows.append(BlockRow(rid, 0.0, end_s, "", True))
    return _without_copies_in_pool(rows, recordings, knobs)


def check_settings(knobs: SplitConfig) -> None:
    """Settings of held-out sites that would do nothing are mistakes."""
    if knobs.ood_pool_sites and knobs.ood_pool == "none":
        raise ConfigError("split.ood_pool_sites does nothing by itself: add --set split.ood_pool=untested")
    if knobs.ood_test_dates and not knobs.ood_sites:
        raise ConfigError(
            "split.ood_test_dates are dates of split.ood_sites, which names none: add sites, or use split.ood_dates"
        )
    foreign = sorted(set(knobs.ood_pool_sites) - set(knobs.ood_sites))
    if foreign:
        raise ConfigError(
            f"split.ood_pool_sites names {foreign[0]!r}, which is not in split.ood_sites: only those are held out"
        )


def check_sites(present: set[str], knobs: SplitConfig) -> None:
    """Held-out sites must be there."""
    _refuse_absent("split.ood_sites", knobs.ood_sites, present)
    _refuse_absent("split.ood_dev_sites", knobs.ood_dev_sites, present)


def check_dates(recordings: Sequence[Recording], knobs: SplitConfig) -> None:
    """Held-out dates must be there, and leave something to test of every held-out site that has labels."""
    present = {recording.local_date for recording in recordings}
    _refuse_absent("split.ood_dates", knobs.ood_dates, present)
    _refuse_absent("split.ood_test_dates", knobs.ood_test_dates, present)
    for site in knobs.ood_sites:
        dates = {r.local_date for r in recordings if r.site == site and r.is_annotated}
        if dates and knobs.ood_test_dates and not dates & {*knobs.ood_test_dates, ""}:
            raise ConfigError(
                f"split.ood_test_dates leaves nothing to test at {site}: its labels are of {', '.join(sorted(dates))}"
            )


def _refuse_absent(key: str, names: Collection[str], present: Collection[str]) -> None:
    missing = sorted(set(names) - set(present))
    if missing:
        likely = difflib.get_close_matches(missing[0], sorted(filter(None, present)), n=8, cutoff=0.0)
        known = ", ".join(sorted(likely)) or "none known"
        raise ConfigError(f"{key} names {missing[0]!r}, which is not in the archive: there are {known}")


def _held_out(recording: Recording, name: str, knobs: SplitConfig) -> BlockRow:
    """The row of a recording of a held-out site or date. Its untested audio stays out of the pool too, unless
    `ood_pool` lets that of a held-out site in. Development sites stay unseen: they stand for the next site.
    """
    is_untested = name == "site_ood" and not _is_tested(recording, knobs)
    joins = knobs.ood_pool == "untested" and recording.site in (knobs.ood_pool_sites or knobs.ood_sites)
    split = name if recording.is_annotated and not is_untested else ""
    return BlockRow(
        recording.recording_id,
        0.0,
        recording.duration_s,
        split,
        knobs.transductive or (is_untested and joins),
    )


def _is_tested(recording: Recording, knobs: SplitConfig) -> bool:
    """Whether a recording of a held-out site belongs to its test. Named dates are tested as whole days, so an
    unlabelled hour of a tested day counts; so does a recording of unknown date, which may be of one.
    """
    if knobs.ood_test_dates:
        return recording.local_date in knobs.ood_test_dates or not recording.local_date
    return recording.is_annotated


def _out_of_domain(recording: Recording, knobs: SplitConfig) -> str:
    if recording.site in knobs.ood_sites and recording.site:
        return "site_ood"
    if recording.site in knobs.ood_dev_sites and recording.site:
        return "ood_dev"
    return "temporal_ood" if recording.local_date and recording.local_date in knobs.ood_dates else ""


def _dealt(
    free: list[Recording], knobs: SplitConfig, rng: np.random.Generator, kept: list[BlockRow]
) -> list[BlockRow]:
    of_kept = {row.recording_id for row in kept}
    unit = knobs.unit
    if unit == "auto":
        unit = "block" if len(free) < 3 and max(r.duration_s for r in free) >= LONG_S else "recording"
    match unit:
        case "recording" | "group" | "day" | "site":
            return _whole(free, unit, knobs, rng, kept)
        case "block":
            copies = _parted_copies(free, kept)
            rows = kept + [row for of_copy in copies.values() for row in of_copy]
            dealt: dict[str, list[BlockRow]] = {}  # sound -> the blocks of the first that has it
            for r in free:
                if r.recording_id in of_kept or r.recording_id in copies:
                    continue
                own = dealt.setdefault(r.fingerprint or r.recording_id, _blocks(r, knobs, rng))
                rows += [row._replace(recording_id=r.recording_id) for row in own]
            return rows
        case "chunk":
            return kept + _chunk_rows([r for r in free if r.recording_id not in of_kept], knobs, rng)


def _whole(
    free: list[Recording], unit: str, knobs: SplitConfig, rng: np.random.Generator, kept: list[BlockRow]
) -> list[BlockRow]:
    """Recordings in one piece, except those that were parted into blocks when there were few: these stay as they are, and
    their blocks count in the shares.
    """
    rows_of = Counter(row.recording_id for row in kept)
    copies = _parted_copies(free, kept)
    parts = [row for row in kept if rows_of[row.recording_id] > 1]
    parts += [row for of_copy in copies.values() for row in of_copy]
    whole = [r for r in free if rows_of[r.recording_id] <= 1 and r.recording_id not in copies]
    groups = bound_together(whole, unit)
    _check_units(groups, whole, unit, knobs)
    known = _names_before(whole, groups, kept)
    first = len(set(groups))
    sizes = [r.num_chunks for r in whole] + [int(fractional_hops(row.end_s - row.begin_s)) for row in parts]
    names = _names_by_share(
        sizes,
        knobs,
        rng,
        [*groups, *range(first, first + len(parts))],
        known | {first + number: row.split for number, row in enumerate(parts)},
    )
    return parts + [
        BlockRow(r.recording_id, 0.0, r.duration_s, name, _in_pool(name, knobs))
        for r, name in zip(whole, names[: len(whole)], strict=True)
    ]


def _names_before(free: list[Recording], groups: list[int], kept: list[BlockRow]) -> dict[int, str]:
    """Group -> where it was dealt before. One that was parted then, and may not be now, goes where models have learned
    most of it: to training before validation, to validation before the test.
    """
    name_of = {row.recording_id: row.split for row in kept}
    found: dict[int, set[str]] = defaultdict(set)
    for recording, group in zip(free, groups, strict=True):
        if recording.recording_id in name_of:
            found[group].add(name_of[recording.recording_id])
    return {group: min(names, key=DEALT.index) for group, names in found.items()}


def _parted_copies(free: list[Recording], kept: list[BlockRow]) -> dict[str, list[BlockRow]]:
    """New recordings with the sound of one that was parted into blocks before: the same blocks in the same splits."""
    rows_of: dict[str, list[BlockRow]] = defaultdict(list)
    for row in kept:
        rows_of[row.recording_id].append(row)
    parted = {r.fingerprint: rows_of[r.recording_id] for r in free if len(rows_of[r.recording_id]) > 1}
    return {
        r.recording_id: [row._replace(recording_id=r.recording_id) for row in parted[r.fingerprint]]
        for r in free
        if r.fingerprint in parted and r.fingerprint and not rows_of[r.recording_id]
    }


def _names_by_share(
    sizes: list[int],
    knobs: SplitConfig,
    rng: np.random.Generator,
    groups: list[int] | None = None,
    known: Mapping[int, str] | None = None,
) -> list[str]:
    """train, val or test for each thing; shares are of the total size, and the
    largest leftovers are filled first.

    Things of one group (the same audio under two names) go together. From three groups on, no split
    stays empty unless its share is 0. Groups whose name is known keep it.
    """
    groups = groups if groups is not None else list(range(len(sizes)))
    group_size: dict[int, int] = defaultdict(int)
    for group, size in zip(groups, sizes, strict=True):
        group_size[group] += max(1, size)
    shares = {"train": knobs.train, "val": knobs.val, "test": max(0.0, 1 - knobs.train - knobs.val)}
    total = sum(group_size.values())
    wanted = {name: share * total for name, share in shares.items() if share > 1e-9}
    name_of = {group: name for group, name in (known or {}).items() if name in wanted}
    given = dict.fromkeys(wanted, 0)
    for group, name in name_of.items():
        given[name] += group_size[group]
    order = rng.permutation(sorted(set(group_size) - set(name_of))).tolist()
    for group in order:
        # 1 for an empty one: it comes first
        name = max(wanted, key=lambda n: (wanted[n] - given[n]) / wanted[n])
        given[name] += group_size[group]
        name_of[group] = name
    return [name_of[group] for group in groups]


def _check_units(groups: list[int], free: list[Recording], unit: str, knobs: SplitConfig) -> None:
    """Days, sites or groups that are unknown, or too few to fill every split, are told and not dealt otherwise."""
    known = {
        "group": [r.group for r in free],
        "day": [r.local_date for r in free],
        "site": [r.site for r in free],
    }
    if unit in known and not any(known[unit]):
        remedy = {
            "group": "give --table with a column `group`, or name one with --group",
            "day": "give --table with a column `start_time`",
            "site": "give --table with a column `site`, or see audio.site_from",
        }[unit]
        raise ConfigError(f"split.unit={unit}, but no annotated recording has a known {unit}:\n{remedy}")
    shares = (knobs.train, knobs.val, 1 - knobs.train - knobs.val)
    wanted, found = sum(share > 1e-9 for share in shares), len(set(groups))
    if unit in known and found < wanted:
        raise ConfigError(
            f"split.unit={unit} has {found} to deal into {wanted} splits:\n"
            "use --set split.unit=recording, or set split.train and split.val so that fewer splits are filled"
        )


def _blocks(recording: Recording, knobs: SplitConfig, rng: np.random.Generator) -> list[BlockRow]:
    """Time blocks of a long recording; a guard is cut off where neighbours belong to different splits."""
    count = max(1, int(recording.duration_s // knobs.block_s))
    edges = np.linspace(0.0, recording.duration_s, count + 1)
    names = _names_by_share([1] * count, knobs, rng)
    rows = []
    for number, name in enumerate(names):
        begin_s, end_s = float(edges[number]), float(edges[number + 1])
        if number and names[number - 1] != name:
            begin_s += knobs.guard_s / 2
        if number + 1 < count and names[number + 1] != name:
            end_s -= knobs.guard_s / 2
        rows.append(BlockRow(recording.recording_id, begin_s, end_s, name, _in_pool(name, knobs)))
    return rows


def _chunk_rows(free: list[Recording], knobs: SplitConfig, rng: np.random.Generator) -> list[BlockRow]:
    """Random chunks, as printed in the paper: neighbours overlap by half, so
    test audio is also trained on.
    """
    places = [(r, k) for r in free for k in range(r.num_chunks)]
    names = _names_by_share([1] * len(places), knobs, rng)
    rows = []
    for (r, k), name in zip(places, names, strict=True):
        begin_s = float(seconds_of_hops(k))
        end_s = r.duration_s if k == r.num_chunks - 1 else begin_s + CHUNK_S - _SLACK_S / 2
        rows.append(BlockRow(r.recording_id, begin_s, end_s, name, _in_pool(name, knobs)))
    return rows


def chunk_ranges(
    begin_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    duration_s: NDArray[np.float64],
    num_chunks: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(first chunk, number of chunks) whose audio lies in each block; padding may
    reach beyond a recording's end.

    Only a block that reaches the very end holds the last, padded chunk: rows of single chunks before it end a
    little early for that reason.
    """
    first = np.ceil(fractional_hops(begin_s - _SLACK_S)).astype(np.int64).clip(min=0)
    last = np.floor(fractional_hops(end_s - CHUNK_S + _SLACK_S)).astype(np.int64)
    last = np.where(end_s >= duration_s - 1e-6, num_chunks - 1, np.minimum(last, num_chunks - 1))
    return first, np.maximum(last - first + 1, 0)


def _in_pool(name: str, knobs: SplitConfig) -> bool:
    return name == "train" or knobs.transductive


def _without_copies_in_pool(
    rows: list[BlockRow], recordings: list[Recording], knobs: SplitConfig
) -> list[BlockRow]:
    """The same audio under another name, or another of its group, must not bring held-out material into the pool."""
    if knobs.transductive:
        return rows
    keys = {r.recording_id: set(keys_of(r)) for r in recordings}
    held = {key for row in rows if row.split in HELD_OUT for key in keys[row.recording_id]}
    own = {row.recording_id for row in rows if row.split}
    return [
        row._replace(in_pool=False) if row.recording_id not in own and keys[row.recording_id] & held else row
        for row in rows
    ]


def splits_table(rows: list[BlockRow]) -> pa.Table:
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=SPLITS)


def rows_of_table(table: pa.Table) -> list[BlockRow]:
    """Rows of splits.parquet."""
    return [BlockRow(**row) for row in table.select(list(BlockRow._fields)).to_pylist()]
