"""Splits that have no call in them, and held-out places that nobody annotated: what nothing can be learnt from, chosen by or
tested on, said before hours of training.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.tree import SplitConfig
from mast_ray.tables.dealing.bonds import Recording

NEEDED = {"train": "nothing can be learnt", "val": "weights and threshold cannot be chosen"}


def silent_splits(labels: pa.Table, splits: pa.Table) -> dict[str, int]:
    """Of training and validation those without a label, with the number of their blocks; {} where nothing is labelled.
    Validation may be silent where development sites choose in its place.
    """
    if not len(labels):
        return {}
    blocks = {name: splits.filter(pc.equal(splits.column("split"), name)) for name in (*NEEDED, "ood_dev")}
    silent = {
        name: len(own)
        for name, own in blocks.items()
        if name in NEEDED and len(own) and not _has_label(own, labels)
    }
    if "val" in silent and _has_label(blocks["ood_dev"], labels):
        del silent["val"]
    return silent


def silence_text(silent: dict[str, int]) -> str:
    """A line for people; "" when every split has calls."""
    parts = [
        f"none of the labels lies in {name} ({count:,} block{'s' * (count != 1)}): {NEEDED[name]}"
        for name, count in silent.items()
    ]
    if not parts:
        return ""
    return (
        "; ".join(parts) + "\nlabel more recordings, or deal them again with `mast split`, e.g. --set seed=1"
    )


def untested_text(recordings: Sequence[Recording], knobs: SplitConfig) -> str:
    """A line for people about sites and dates that are held out without an annotated recording: their audio is kept from
    training, and no figure comes of it. "" where all are tested, or nothing is annotated at all.
    """
    heard = [r for r in recordings if r.is_annotated]
    sites, dates = {r.site for r in heard}, {r.local_date for r in heard}
    wanted = (("ood_sites", knobs.ood_sites, sites), ("ood_dev_sites", knobs.ood_dev_sites, sites), ("ood_dates", knobs.ood_dates, dates))  # fmt: skip
    idle = [
        f"split.{key} {', '.join(missing)}"
        for key, names, there in wanted
        if (missing := [n for n in names if n not in there])
    ]
    if not idle or not heard:
        return ""
    return (
        f"no recording is annotated of {'; '.join(idle)}: held out, they test nothing\n"
        "annotate some (--listened TABLE names those without a call), or leave them out, and their audio joins the pool"
    )


def _has_label(blocks: pa.Table, labels: pa.Table) -> bool:
    """Whether a label lies in a block, if only in part."""
    places = blocks.select(["recording_id", "begin_s", "end_s"]).rename_columns(
        ["recording_id", "first_s", "last_s"]
    )
    met = labels.select(["recording_id", "begin_s", "end_s"]).join(places, "recording_id", join_type="inner")
    columns = (met.column(name) for name in ("begin_s", "end_s", "first_s", "last_s"))
    begin_s, end_s, first_s, last_s = columns
    return bool(pc.any(pc.and_(pc.less(begin_s, last_s), pc.greater(end_s, first_s))).as_py())
