"""Splits that have no call in them: what nothing can be learnt from or chosen by, said before hours of training."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

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


def _has_label(blocks: pa.Table, labels: pa.Table) -> bool:
    """Whether a label lies in a block, if only in part."""
    places = blocks.select(["recording_id", "begin_s", "end_s"]).rename_columns(
        ["recording_id", "first_s", "last_s"]
    )
    met = labels.select(["recording_id", "begin_s", "end_s"]).join(places, "recording_id", join_type="inner")
    columns = (met.column(name) for name in ("begin_s", "end_s", "first_s", "last_s"))
    begin_s, end_s, first_s, last_s = columns
    return bool(pc.any(pc.and_(pc.less(begin_s, last_s), pc.greater(end_s, first_s))).as_py())
