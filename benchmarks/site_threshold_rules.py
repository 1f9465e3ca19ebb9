"""Thresholds per site by the highest F1 or by the middle rule: which are better on recordings that had no part in choosing them?

    python benchmarks/threshold_rules.py --work DIR --archives 10      # makes the archives and detectors
    python benchmarks/tune_rules.py --work DIR                         # detects without suppression
    python benchmarks/site_threshold_rules.py --work DIR --out site_threshold_rules_two_cores.json

The held-out recordings of two sites of every archive are dealt in all ways: two of each site choose (those with 20 calls or more
each, as `mast tune` asks for), the others are scored. Mean F1 over deals is the archive's; gains are over one threshold of the highest
F1, paired over archives, with their standard error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threshold_rules import SPLITS
from tune_rules import of_grid, of_middle, plain_setting, processed, stored_candidates

from mast_ray.evaluation.breakdown import subset
from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.stages.search.site_thresholds import FEWEST_CALLS
from mast_ray.verbs.main import config_of

Rule = Callable[[Matches], float]
RULES: dict[str, Rule] = {
    "highest F1": lambda matches: of_grid(matches)[0],
    "middle": lambda matches: of_middle(matches)[0],
}
BASE = "highest F1, one for all"


class Heard(NamedTuple):
    """Matches with the recording and the site of every chunk that they lie in."""

    matches: Matches
    recording: NDArray[np.int64]
    site: NDArray[np.int64]

    def only(self, recordings: Any, site: int | None = None) -> Matches:
        """Those of some recordings, and of one site."""
        wanted = np.isin(self.recording, list(recordings)) & (True if site is None else self.site == site)
        return subset(self.matches, wanted[self.matches.group], wanted[self.matches.truth_group])


def f1_of(heard: Heard, recordings: Any, thresholds: list[float]) -> float:
    """With a threshold for every site."""
    hits = kept = truths = 0
    for site, threshold in enumerate(thresholds):
        own = heard.only(recordings, site)
        hits += int((own.is_true_positive & (own.score >= threshold)).sum())
        kept += int((own.score >= threshold).sum())
        truths += own.num_truth
    return 2 * hits / max(kept + truths, 1)


def found_by(heard: Heard, rule: Rule, pairs: list[tuple[int, int]]) -> dict[str, list[float]]:
    """Way -> a threshold per site; `pairs` are the two recordings of every site that choose."""
    everything = [one for pair in pairs for one in pair]
    one = [rule(heard.only(everything))] * len(pairs)
    own = [rule(heard.only(pair, site)) for site, pair in enumerate(pairs)]
    f1 = np.zeros(2)
    for half in (0, 1):  # as in mast tune; of halves the mean, nearly
        chosen, other = [pair[half] for pair in pairs], [pair[1 - half] for pair in pairs]
        single = [rule(heard.only(chosen))] * len(pairs)
        f1 += [
            f1_of(heard, other, [rule(heard.only(chosen, s)) for s in range(len(pairs))]),
            f1_of(heard, other, single),
        ]
    return {
        "one for all": one,
        "one per site": own,
        "one per site where halves say so": own if f1[0] > f1[1] else one,
    }


def deals(heard: Heard) -> Iterator[tuple[list[tuple[int, int]], set[int]]]:
    """(two recordings of every site, all others)"""
    calls = np.bincount(heard.recording[heard.matches.truth_group], minlength=heard.recording.max() + 1)
    able = [
        [one for one in np.unique(heard.recording[heard.site == site]) if calls[one] >= FEWEST_CALLS]
        for site in range(int(heard.site.max()) + 1)
    ]
    for pairs in itertools.product(*(itertools.combinations(own, 2) for own in able)):
        rest = set(np.unique(heard.recording).tolist()) - {one for pair in pairs for one in pair}
        if all(heard.only(rest, site).num_truth for site in range(len(able))):
            yield list(pairs), rest


def one_archive(place: Path) -> dict[str, Any]:
    """Detector -> way -> mean F1 over deals; nothing for an archive without a deal."""
    config = config_of("tiny", [], [])
    found: dict[str, Any] = {"archive": place.name}
    for name in ("shipped", "trained"):
        archive, chunks, pool = stored_candidates(place, name, ("val", *SPLITS))
        boxes = processed(config, pool, plain_setting(place, name))
        matches = score_chunks(archive, chunks, boxes, config).matches
        recording = chunks.recording.astype(np.int64)
        site = np.unique(np.array(archive.recordings["site"].to_pylist())[recording], return_inverse=True)[1]
        heard, rows = Heard(matches, recording, site), []
        for pairs, rest in deals(heard):
            ways = {
                f"{rule}, {way}": at
                for rule, own in RULES.items()
                for way, at in found_by(heard, own, pairs).items()
            }
            rows.append({way: f1_of(heard, rest, at) for way, at in ways.items()})
        found[name] = {way: float(np.mean([row[way] for row in rows])) for way in rows[0]} if rows else {}
        found["deals"] = len(rows)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of threshold_rules.py")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    archives = [
        one_archive(place)
        for place in sorted(args.work.glob("archive*"))
        if (place / "candidates_trained" / "manifest.json").exists()
    ]
    archives = [one for one in archives if one["deals"]]
    lines = []
    for name in ("shipped", "trained"):
        base = np.array([one[name][BASE] for one in archives])
        for way in archives[0][name]:
            gain = np.array([one[name][way] for one in archives]) - base
            lines.append({"detector": name, "way": way, "f1": float((base + gain).mean()), "gain": float(gain.mean()),
                          "standard_error": float(gain.std(ddof=1) / len(gain) ** 0.5)})  # fmt: skip
            print("{detector}: {way}: {f1:.3f} ({gain:+.3f} +- {standard_error:.3f})".format(**lines[-1]))
    print(f"{len(archives)} archives, {sum(one['deals'] for one in archives)} deals")
    if args.out:
        args.out.write_text(json.dumps({"lines": lines, "archives": archives}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
