"""What binds recordings together, so that no split parts them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recording:
    """What dealing needs to know of a recording."""

    recording_id: str
    site: str
    local_date: str  # YYYY-MM-DD, "" when unknown
    duration_s: float
    num_chunks: int
    is_annotated: bool
    fingerprint: str
    group: str = ""  # recordings that must not be parted


def bound_together(recordings: list[Recording], unit: str) -> list[int]:
    """A number per recording, equal for those that must go into one split: the same audio under two names, one group
    of the user's, and one day or one site where these are dealt.
    """
    number = list(range(len(recordings)))  # of each recording's set; its smallest row stands for it
    first: dict[tuple[str, str], int] = {}

    def root(row: int) -> int:
        while number[row] != row:
            row = number[row]
        return row

    for row, recording in enumerate(recordings):
        for key in keys_of(recording, unit):
            a, b = root(first.setdefault(key, row)), root(row)
            number[max(a, b)] = min(a, b)
    places: dict[int, int] = {}
    return [places.setdefault(root(row), len(places)) for row in range(len(recordings))]


def keys_of(recording: Recording, unit: str = "") -> list[tuple[str, str]]:
    """What binds a recording to others: (kind, value)."""
    keys = [("copy", recording.fingerprint), ("group", recording.group)]
    keys += [("day", recording.local_date)] if unit == "day" else []
    keys += [("site", recording.site)] if unit == "site" else []
    return [key for key in keys if key[1]]
