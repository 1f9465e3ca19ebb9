"""What adapting a detector to another archive gained there, and what it cost where it came from.

Both models are scored on every held-out split of both archives as `mast evaluate` does it, each with its own statistics
and at its own threshold: what a user of either would see. OUT/adaptation/ keeps scores and detections, so that
`mast self-train` and `mast evaluate --known OUT` need not detect again.
"""

from __future__ import annotations

from dataclasses import dataclass

from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import difference_text
from mast_ray.evaluation.intervals import Difference
from mast_ray.evaluation.score_sheet import ScoreRow
from mast_ray.evaluation.split_truth import scored_splits
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.stages.score.evaluate import EVERYTHING, ModelScores, evaluate_model
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared

FOLDER = "adaptation"
HERE, THERE = "on the new archive", "on the archive to remember"
SHOWN = {"f1": "F1", "ap_area": "AP", "precision": "precision", "recall": "recall"}


@dataclass(frozen=True)
class Adaptation:
    """A split of an archive before and after."""

    place: str
    split: str
    num_calls: int
    before: dict[str, float]
    after: dict[str, float]
    gain: Difference  # in F1, over the same recordings


def adaptations(
    config: Config, before: str, after: str, prepared: str, remember: str = "", *, runner: Runner = ON_RAY
) -> list[Adaptation]:
    """Both models on the splits of the new archive, and of the one to remember where it is given."""
    found: list[Adaptation] = []
    for place, archive, name in ((HERE, prepared, "here"), (THERE, remember, "there")):
        splits = scored_splits(open_prepared(archive, config.storage)) if archive else ()
        if not splits:
            continue
        root = open_storage(after, config.storage).at(FOLDER)
        scores = {
            when: evaluate_model(
                config, model, archive, root.at(f"{name}-{when}").url, EVERYTHING, runner=runner
            )
            for when, model in (("before", before), ("after", after))
        }
        found += [compared(place, split, scores["before"], scores["after"], config) for split in splits]
    return found


def compared(place: str, split: str, before: ModelScores, after: ModelScores, config: Config) -> Adaptation:
    """Two models on a split."""
    old, new = before.sheet.whole(split), after.sheet.whole(split)
    assert old is not None and new is not None, f"{split} was asked for and has no row"
    gain = after.gains_over(before, config)[split]["f1"]
    return Adaptation(place, split, old.num_truth, _figures(old), _figures(new), gain)


def _figures(row: ScoreRow) -> dict[str, float]:
    return {name: row.figures[name].estimate for name in SHOWN}


def adaptation_text(found: list[Adaptation]) -> str:
    """A line per archive and split."""
    if not found:
        return "no archive has held-out calls: before and after cannot be compared"
    lines = []
    for one in found:
        parts = [f"{title} {one.before[name]:.3f} -> {one.after[name]:.3f}" for name, title in SHOWN.items()]
        gain = difference_text(one.gain)
        lines.append(f"{one.place} ({one.split}, {one.num_calls} calls): {', '.join(parts)}; F1 {gain}")
    return "\n".join(lines)
