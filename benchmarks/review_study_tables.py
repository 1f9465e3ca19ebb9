"""Tables and the picture of review_study.py: F1 of every arm over the number of boxes, and paired differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

NOTHING = "nothing"


def f1(counts: np.ndarray) -> float:
    kept, hits, truths = counts.sum(axis=0)
    return float(2 * hits / max(kept + truths, 1))


def tables_of(files: list[Path], num_draws: int = 2000) -> dict[str, Any]:
    """F1 of every arm and number of boxes over all sites, and differences to labelling from scratch, paired by recording."""
    from mast_ray.evaluation.intervals import limits

    points = [json.loads(path.read_text()) for path in files]
    sites = sorted({one["site"] for one in points})
    cells: dict[tuple[str, int], dict[tuple[int, int], dict[str, Any]]] = {}
    for one in points:
        cells.setdefault((one["arm"], one["boxes"]), {})[one["site"], one["seed"]] = one
    whole = {key: own for key, own in cells.items() if {site for site, _ in own} == set(sites)}
    numbers = {site: len(next(one["recordings"] for one in points if one["site"] == site)) for site in sites}
    size = sum(numbers.values())
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, size, (num_draws, size))

    def counts_of(key: tuple[str, int], seeds: list[int]) -> np.ndarray:
        """(R, 3) kept, hits, truths of every scored recording, the mean of the seeds"""
        own = whole[key]
        return np.concatenate(
            [
                np.mean([own[site, seed]["recordings"] for seed in seeds if (site, seed) in own], axis=0)
                for site in sites
            ]
        )

    def seeds_of(key: tuple[str, int]) -> list[int]:
        return sorted({seed for _, seed in whole[key] if all((site, seed) in whole[key] for site in sites)})

    def draws_of(own: np.ndarray) -> np.ndarray:
        kept, hits, truths = own[drawn].sum(axis=1).T
        return 2 * hits / np.maximum(kept + truths, 1)

    rows = []
    for arm, number in sorted((key for key in whole if seeds_of(key)), key=lambda key: (key[1], key[0])):
        seeds, cell = seeds_of((arm, number)), whole[arm, number]
        own = counts_of((arm, number), seeds)
        low, high = limits(draws_of(own), size)
        mine = [cell[site, seed] for site in sites for seed in seeds]
        row: dict[str, Any] = {"arm": arm, "boxes": number, "seeds": seeds, "f1": f1(own), "low": low, "high": high,
                               "by_site_and_seed": [[round(cell[s, k]["f1"], 4) for k in seeds] for s in sites],
                               "at_the_best_threshold": float(np.mean([one["f1_at_the_best_threshold"] for one in mine])),
                               "kept": [one.get("kept", "-") for one in mine]}  # fmt: skip
        said = [one.get("right", 0) + one.get("wrong", 0) for one in mine]
        row["judged"], row["right"] = (
            float(np.mean(said)),
            float(np.mean([one.get("right", 0) for one in mine])),
        )
        for rival in ("from scratch", "start"):
            other = (rival, number if rival != "start" else 0)
            if other not in whole or arm == rival:
                continue
            common = [seed for seed in seeds if seed in seeds_of(other)] if rival != "start" else seeds
            if not common:
                continue
            ours, theirs = (
                counts_of((arm, number), common),
                counts_of(other, common if rival != "start" else [0]),
            )
            below, above = limits(draws_of(ours) - draws_of(theirs), size)
            row[f"minus_{rival.replace(' ', '_')}"] = [f1(ours) - f1(theirs), below, above, len(common)]
        rows.append(row)
    truths = sum(np.array(one["recordings"])[:, 2].sum() for one in points if one["arm"] == "start")
    return {"sites": sites, "recordings": size, "calls": int(truths), "rows": rows}


def text_of(results: dict[str, Any]) -> str:
    lines = [f"{results['recordings']} scored recordings of {len(results['sites'])} sites, {results['calls']} calls",
             f"{'boxes':>5}  {'arm':<14} F1 [95 %]              minus from scratch        minus start"]  # fmt: skip

    def gain(row: dict[str, Any], name: str) -> str:
        found = row.get(name)
        return f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]" if found else "-"

    for row in results["rows"]:
        lines.append(
            f"{row['boxes']:>5}  {row['arm']:<14} {row['f1']:.3f} [{row['low']:.3f}, {row['high']:.3f}]  "
            f"{gain(row, 'minus_from_scratch'):<25} {gain(row, 'minus_start')}"
        )
    return "\n".join(lines)


COLOURS = {"uncertain": "#0072b2", "random": "#009e73", "windows": "#cc79a7", "cluster": "#e6a800", "from scratch": "#d55e00",
           NOTHING: "#777777"}  # fmt: skip
NAMES = {"uncertain": "review, most uncertain first", "random": "review, drawn at random",
         "windows": "review, windows around uncertain boxes", "cluster": "review, look-alikes at once",
         "from scratch": "labelling from scratch, same start", NOTHING: "labelling from scratch, no detector to start from"}  # fmt: skip


def svg_of(results: dict[str, Any]) -> str:
    """Curves with intervals; the detector as it came is a dashed line."""
    width, height, left, top, bottom = 720, 420, 64, 24, 56
    rows = results["rows"]
    most = max(row["boxes"] for row in rows) or 1
    floor = max(0.0, np.floor(10 * min(row["low"] for row in rows)) / 10)
    ceiling = min(1.0, np.ceil(10 * max(row["high"] for row in rows)) / 10)

    def x(boxes: float) -> float:
        return left + (width - left - 30) * boxes / most

    def y(value: float) -> float:
        return top + (height - top - bottom) * (ceiling - value) / (ceiling - floor)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
             f'<rect width="{width}" height="{height}" fill="white"/>']  # fmt: skip
    for step in range(round(10 * floor), round(10 * ceiling) + 1):
        at = y(step / 10)
        parts.append(f'<line x1="{left}" x2="{width - 30}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{step / 10:.1f}</text>')  # fmt: skip
    for boxes in sorted({row["boxes"] for row in rows}):
        parts.append(
            f'<text x="{x(boxes):.1f}" y="{height - bottom + 20}" text-anchor="middle">{boxes}</text>'
        )
    parts.append(
        f'<text x="{(left + width) / 2}" y="{height - 14}" text-anchor="middle">boxes reviewed or drawn</text>'
    )
    parts.append(
        f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})" text-anchor="middle">F1 at the unseen site</text>'
    )
    start = next((row for row in rows if row["arm"] == "start"), None)
    if start is not None:
        at = y(start["f1"])
        parts.append(f'<line x1="{left}" x2="{width - 30}" y1="{at:.1f}" y2="{at:.1f}" stroke="#333" stroke-dasharray="6 4"/>'
                     f'<text x="{width - 34}" y="{at - 6:.1f}" text-anchor="end" fill="#333">the detector as it came</text>')  # fmt: skip
    for place, arm in enumerate(name for name in COLOURS if any(row["arm"] == name for row in rows)):
        own = sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["boxes"])
        shift, colour = 4 * (place - 1), COLOURS[arm]
        line = " ".join(f"{x(row['judged']) + shift:.1f},{y(row['f1']):.1f}" for row in own)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for row in own:
            at = x(row["judged"]) + shift
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(row["low"]):.1f}" y2="{y(row["high"]):.1f}" stroke="{colour}"/>'
                         f'<circle cx="{at:.1f}" cy="{y(row["f1"]):.1f}" r="4" fill="{colour}"/>')  # fmt: skip
        at = height - bottom - 12 - 18 * place
        parts.append(f'<rect x="{left + 10}" y="{at - 10}" width="12" height="12" fill="{colour}"/>'
                     f'<text x="{left + 28}" y="{at}">{NAMES[arm]}</text>')  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])
