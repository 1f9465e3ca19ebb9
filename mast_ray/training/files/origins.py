"""What a model's weights go back to, as its card carries it: whoever is given a model folder sees what is in it, and which
licences come with that.

`began_with` of a card lists origins, the nearest first: those whose weights went on (start, encoder), then those whose
labels alone did (teacher). None of them: it began with nothing. No list: the card is from before this was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

How = Literal["start", "encoder", "teacher"]
HOWS: dict[How, str] = {"start": "began with", "encoder": "encoder of", "teacher": "taught by"}
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Origin:
    """One model, or file of weights, that others go back to."""

    how: How
    name: str  # shipped:NAME, a file, or the last two parts of a folder; never where that lay
    weights_sha256: str = ""
    licence: str = ""  # as its own card states it


Origins = tuple[Origin, ...]


def parse_origins(found: Any) -> Origins | None:
    """Of JSON; TypeError or ValueError for anything that is no list of origins."""
    if found is None:
        return None
    if not isinstance(found, list):
        raise ValueError("began_with is no list")
    origins = tuple(Origin(**one) for one in found)
    for one in origins:
        if one.how not in HOWS or not all(isinstance(value, str) for value in asdict(one).values()):
            raise ValueError(f"began_with holds {str(asdict(one))[:80]}")
    return origins


def together(origins: Iterable[Origin]) -> Origins:
    """Each once, where it stands first: a teacher whose weights went on is named as that."""
    once: dict[str, Origin] = {}
    for one in origins:
        once.setdefault(one.weights_sha256 or one.name, one)
    return tuple(once.values())


def short_name(place: str) -> str:
    """The last two parts of where a model lies: `model` alone says nothing, and the rest is nobody's business."""
    return "/".join(place.rstrip("/").split("/")[-2:])


def origins_text(began_with: Sequence[Origin] | None) -> str:
    """In a line."""
    if began_with is None:
        return f"what it began with is {NOT_RECORDED}"
    return ", ".join(f"{HOWS[one.how]} {one.name}" for one in began_with) or "began with nothing"


def licences_of(name: str, licence: str, began_with: Sequence[Origin] | None) -> dict[str, str]:
    """Whose licence says what, of all that a model goes back to and of itself, where its card states one."""
    stated = {name: licence} | {one.name: one.licence for one in began_with or ()}
    return {whose: text for whose, text in stated.items() if text}
