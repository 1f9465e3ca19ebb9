"""F1 at an unseen site over the number of boxes that an expert has reviewed, queue by queue, beside labelling from scratch.

    python benchmarks/review_study.py --out study                     # two sites, minutes per point on two cores
    python benchmarks/review_study.py --out study --picture docs/review_study.svg

Every site is a synthetic archive that the shipped detector has not heard: one day to review or to label, another to be
scored on, with all its truth. The expert is that truth. Reviewing: boxes of the detector are shown one by one, the most
uncertain first or drawn at random; a box on a call (IoU 0.2 or more) is set right, any other is rejected. Labelling
from scratch: recordings are gone through in random order and every call is drawn, until there are as many boxes. All of
them go through `mast learn`: the same training from the same detector, and the model it keeps is scored. `nothing` is the
detector that labelling from scratch gives without a shipped one to start from. Intervals: 95 %, over the scored
recordings of all sites; differences are paired by recording.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

BOXES = (25, 50, 100)
ARMS = ("uncertain", "random", "from scratch")
NOTHING = "nothing"
SAME_IOU, GOOD_IOU = 0.2, 0.7
HOURS, MINUTES = 0.3, 0.5


def main() -> None:
    args = arguments()
    for seed in args.sites:
        site = Site(args.out / f"site{seed}", seed, args)
        for number, arm in [(n, arm) for n in args.boxes for arm in args.arms]:
            site.point(arm, number)
    results = tables_of(sorted(args.out.glob("site*/points/*.json")))
    (args.out / "review_study.json").write_text(json.dumps(results, indent=1))
    print(text_of(results))
    if args.picture:
        args.picture.write_text(svg_of(results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add(
        "--sites",
        type=int,
        nargs="*",
        default=[7, 101],
        help="seeds of the synthetic sites; none: tables only",
    )
    add("--boxes", type=int, nargs="+", default=list(BOXES))
    add("--arms", nargs="+", default=list(ARMS), choices=(*ARMS, NOTHING))
    add("--model", default="shipped:tiny")
    add("--snr-db", type=float, default=4.0, help="of the calls: harder than the detector was trained on")
    add("--density", type=float, default=40.0, help="calls per minute")
    add("--site-shift", type=float, default=2.5, help="how far the sites are from those of other archives")
    add("--clips-dir", default="", help="cut the calls from real clips, as `mast synth` does it")
    add("--scenes-dir", default="", help="backgrounds from real scenes")
    add("--hours", type=float, default=HOURS, help="of sound per site, half of it to review")
    add("--minutes", type=float, default=3.0, help="of training per point")
    add("--picture", type=Path)
    return parser.parse_args()


class Site:
    """A synthetic archive, what the detector finds in it, and its truth."""

    def __init__(self, folder: Path, seed: int, args: argparse.Namespace) -> None:
        from mast_ray.training.files.shipped import model_folder

        self.folder, self.seed, self.args = folder, seed, args
        self.model = model_folder(args.model, has_gpu=False)
        self.points = folder / "points"
        self.points.mkdir(parents=True, exist_ok=True)
        self._archives()
        self.truth = truth_of(folder / "archive" / "truth.csv")
        self._detections()
        self.found = self._boxes()

    def _archives(self) -> None:
        """Audio of two days; each day is an archive of its own."""
        if (self.folder / "score").exists():
            return
        words = ("--hours", self.args.hours, "--sites", 1, "--days", 2, "--minutes", MINUTES, "--seed", self.seed,
                 "--snr-db", self.args.snr_db, "--site-shift", self.args.site_shift, "--density", self.args.density,
                 "--labelled-share", 0.5, "--processes", 1)  # fmt: skip
        real = [(f"--{name}-dir", getattr(self.args, f"{name}_dir")) for name in ("clips", "scenes")]
        given = [word for option, folder in real if folder for word in (option, folder)]
        run("synth", "--out", self.folder / "archive", *words, *given)
        with (self.folder / "archive" / "recordings.csv").open() as file:
            roles = {row["path"]: row["role"] for row in csv.DictReader(file)}
        for path, role in roles.items():
            day = "review" if role == "labelled" else "score"
            target = self.folder / f"{day}.part" / Path(path).relative_to("audio")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / "archive" / path, target)
        for day in ("review", "score"):
            (self.folder / f"{day}.part").rename(self.folder / day)

    def _detections(self) -> None:
        run("detect", self.model, self.folder / "review", "--out", self.folder / "run" / "detections", "--runner", "here",
            "--recipe", "tiny")  # fmt: skip
        labels = self.folder / "truth.csv"
        with labels.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("path", "begin_s", "end_s", "low_hz", "high_hz", "label"))
            for path, boxes in self.truth.items():
                if (self.folder / "score" / path).exists():
                    writer.writerows((path, *box) for box in boxes)
        run("prepare", self.folder / "score", "--annotations", labels, "--out", self.folder / "scored", "--runner", "here",
            "--recipe", "tiny", "--set", "split.ood_sites=[SITE01]")  # fmt: skip

    def _boxes(self) -> pa.Table:
        """Detections to review: down to half the threshold, as the page shows them."""
        from mast_ray.reporting.detection_tables import model_threshold, read_detections

        place = str(self.folder / "run" / "detections")
        self.threshold = model_threshold(place) or 0.5
        return read_detections(place, self.threshold / 2)

    def point(self, arm: str, number: int) -> None:
        """One arm with so many boxes: learned, scored and written."""
        target = self.points / f"{arm.replace(' ', '_')}-{number}.json"
        start = self.points / "start-0.json"
        if not start.exists():
            start.write_text(
                json.dumps({"arm": "start", "boxes": 0, "site": self.seed, **self.scored(self.model)})
            )
        if target.exists():
            return
        work = self.folder / "work" / target.stem
        shutil.rmtree(work, ignore_errors=True)
        actions = self.labelled(number) if arm in ("from scratch", NOTHING) else self.reviewed(arm, number)
        model, about = self.learned(actions, work, arm)
        found = {"arm": arm, "boxes": number, "site": self.seed, **about, **self.scored(model)}
        target.write_text(json.dumps(found))
        print(json.dumps({k: v for k, v in found.items() if k != "recordings"}), flush=True)
        shutil.rmtree(work, ignore_errors=True)

    def reviewed(self, queue: str, number: int) -> list[Any]:
        """What the expert does with the first boxes of a queue."""
        from mast_ray.reporting.exports.rows import detection_id

        rows = self.found.to_pylist()
        rng = np.random.default_rng([self.seed, 7])
        score = np.array([row["score"] for row in rows])
        if queue == "random":  # of what counts as a detection, as in the page
            order = rng.permutation(np.flatnonzero(score >= self.threshold))
        else:
            order = np.argsort(np.abs(score - self.threshold), kind="stable")
        taken: dict[str, set[int]] = {}
        actions = []
        for place in order[:number].tolist():
            row = rows[place]
            box = tuple(row[name] for name in ("begin_s", "end_s", "low_hz", "high_hz"))
            truth = self.truth.get(row["path"], [])
            free = [n for n in range(len(truth)) if n not in taken.setdefault(row["path"], set())]
            best = max(free, key=lambda n: iou(box, truth[n]), default=None)
            overlap = iou(box, truth[best]) if best is not None else 0.0
            told: dict[str, Any] = {"action": "reject", "box": box, "label": ""}
            if best is not None and overlap >= SAME_IOU:
                taken[row["path"]].add(best)
                good = overlap >= GOOD_IOU
                told = {"action": "accept" if good else "change", "box": box if good else truth[best][:4],
                        "label": truth[best][4]}  # fmt: skip
            name = detection_id(row["path"], *box)
            actions.append(
                self.action(told, row["path"], row["recording_id"], name, name, row["score"], queue)
            )
        return actions

    def labelled(self, number: int) -> list[Any]:
        """Recordings gone through in random order, every call drawn, until there are so many boxes."""
        paths = sorted(
            str(p.relative_to(self.folder / "review")) for p in (self.folder / "review").rglob("*.wav")
        )
        ids = dict(
            zip(*(self.recordings().column(n).to_pylist() for n in ("path", "recording_id")), strict=True)
        )
        actions, left = [], number
        for place in np.random.default_rng([self.seed, 9]).permutation(len(paths)).tolist():
            path = paths[place]
            if left <= 0 or path not in ids:
                continue
            boxes = sorted(self.truth.get(path, []))[:left]
            whole = len(boxes) < left
            end_s = MINUTES * 60 if whole else max(box[1] for box in boxes)
            actions.append(
                self.action(
                    {"action": "looked", "box": (0.0, end_s, None, None), "label": ""}, path, ids[path]
                )
            )
            for box in boxes:
                actions.append(
                    self.action({"action": "draw", "box": box[:4], "label": box[4]}, path, ids[path])
                )
            left -= len(boxes)
        return actions

    def recordings(self) -> pa.Table:
        from mast_ray.reporting.detection_tables import read_recordings

        return read_recordings(str(self.folder / "run" / "detections"))

    def action(self, told: dict[str, Any], path: str, recording_id: str, box_id: str = "", detection_id: str = "",
               score: float | None = None, queue: str = "recording") -> Any:  # fmt: skip
        from mast_ray.evaluation.review.corrections import Action, new_action_id, stamped

        self.clock = getattr(self, "clock", datetime(2026, 1, 1, tzinfo=UTC)) + timedelta(seconds=1)
        begin_s, end_s, low_hz, high_hz = told["box"]
        one = Action(told["action"], "truth", recording_id, path, box_id, detection_id, begin_s, end_s, low_hz, high_hz,
                     told["label"], score, queue)  # fmt: skip
        return stamped(one, self.clock, new_action_id())

    def learned(self, actions: list[Any], work: Path, arm: str) -> tuple[str, dict[str, Any]]:
        """The model that `mast learn` keeps (without detecting again), and what it said; from nothing: what training gives."""
        from mast_ray.config.loading import apply_overrides
        from mast_ray.config.recipes import tiny
        from mast_ray.evaluation.review.corrections import append_actions, log_path
        from mast_ray.stages.learn.archive import lesson_of, prepare_lesson
        from mast_ray.stages.learn.learn import adapt, compare, what_was_said
        from mast_ray.stages.learn.places import find_run
        from mast_ray.stages.runner import HERE
        from mast_ray.stages.train.train import run_train_detector
        from mast_ray.storage.storage import open_storage

        append_actions(log_path(work / "corrections", "truth"), actions)
        config = apply_overrides(tiny(), {"cluster.use_gpu": "no"})
        run_folder = str(self.folder / "run")
        place = find_run(run_folder, str(self.folder / "review"), self.model, str(work / "corrections"))
        _, taught = what_was_said(place)
        archive = prepare_lesson(lesson_of(taught, None), place.audio, str(work / "prepared"), config, HERE)
        about = {"right": taught.num_right, "wrong": taught.num_wrong}
        if arm == NOTHING:
            more = {"spectrogram.background": "median", "model.finest_level": "4x4", "detector.epochs": 12}
            config = apply_overrides(config, more)
            run_train_detector(config, archive.storage.url, str(work / "adapted"), runner=HERE)
            return str(work / "adapted"), about
        adapted = adapt(config, place.model, archive, str(work / "adapted"), self.args.minutes, HERE)
        compared = compare(config, place.model, adapted, archive, open_storage(work / "scores"), HERE)
        about |= {
            "held_out_gain": compared.gain.estimate,
            "kept": "adapted" if compared.is_better else "present",
        }
        return (adapted if compared.is_better else place.model), about

    def scored(self, model: str) -> dict[str, Any]:
        """Counts per recording at the model's own threshold, on whole recordings of the other day."""
        import tempfile

        from mast_ray.config.recipes import tiny
        from mast_ray.evaluation.scoring import sums_of
        from mast_ray.evaluation.whole_recordings import score_stitched
        from mast_ray.stages.runner import HERE
        from mast_ray.stages.score.evaluate import Wanted, evaluate_model
        from mast_ray.tables.prepared import open_prepared

        prepared, config = str(self.folder / "scored"), tiny()
        with tempfile.TemporaryDirectory() as work:
            found = evaluate_model(config, model, prepared, work, Wanted(("site_ood",)), runner=HERE)
            whole = score_stitched(open_prepared(prepared), found.splits["site_ood"], "site_ood", config)
        counts = sums_of(whole, found.threshold.value).sums[:, :3]  # kept, hits, truths
        return {"f1": f1(counts), "threshold": found.threshold.value, "recordings": counts.tolist()}


def run(verb: str, *words: Any) -> None:
    from mast_ray.verbs.main import run_verb

    code = run_verb(verb, [str(word) for word in words])
    if code not in (0, 4):
        raise SystemExit(f"mast {verb} ended with {code}")


def truth_of(path: Path) -> dict[str, list[tuple[float, float, float, float, str]]]:
    """Recording -> its calls: begin_s, end_s, low_hz, high_hz, label."""
    found: dict[str, list[tuple[float, float, float, float, str]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            box = tuple(float(row[name]) for name in ("begin_s", "end_s", "low_hz", "high_hz"))
            found.setdefault(row["path"].removeprefix("audio/"), []).append((*box, row["label"]))  # type: ignore[arg-type]
    return found


def iou(a: Any, b: Any) -> float:
    """Overlap of two boxes in seconds and hertz."""
    in_time, in_band = min(a[1], b[1]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[2], b[2])
    both = max(in_time, 0.0) * max(in_band, 0.0)
    return both / ((a[1] - a[0]) * (a[3] - a[2]) + (b[1] - b[0]) * (b[3] - b[2]) - both)


def f1(counts: np.ndarray) -> float:
    kept, hits, truths = counts.sum(axis=0)
    return float(2 * hits / max(kept + truths, 1))


def tables_of(files: list[Path], num_draws: int = 2000) -> dict[str, Any]:
    """F1 of every arm and number of boxes over all sites, and differences to labelling from scratch, paired by recording."""
    from mast_ray.evaluation.intervals import limits

    points = [json.loads(path.read_text()) for path in files]
    sites = sorted({one["site"] for one in points})
    cells: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for one in points:
        cells.setdefault((one["arm"], one["boxes"]), {})[one["site"]] = one
    whole = {key: own for key, own in cells.items() if sorted(own) == sites}
    counts = {
        key: np.concatenate([np.array(own[s]["recordings"]) for s in sites]) for key, own in whole.items()
    }
    size = len(next(iter(counts.values())))
    drawn = np.random.default_rng(0).integers(0, size, (num_draws, size))
    draws = {}
    for key, own in counts.items():
        kept, hits, truths = own[drawn].sum(axis=1).T
        draws[key] = 2 * hits / np.maximum(kept + truths, 1)
    rows = []
    for (arm, number), own in sorted(counts.items(), key=lambda item: (item[0][1], item[0][0])):
        low, high = limits(draws[arm, number], size, 0.95)
        row: dict[str, Any] = {"arm": arm, "boxes": number, "f1": f1(own), "low": low, "high": high,
                               "by_site": [whole[arm, number][s]["f1"] for s in sites],
                               "kept": [whole[arm, number][s].get("kept", "-") for s in sites]}  # fmt: skip
        said = [whole[arm, number][s].get("right", 0) + whole[arm, number][s].get("wrong", 0) for s in sites]
        row["judged"] = float(np.mean(said))  # a day may hold fewer calls than there were to be drawn
        for rival in ("from scratch", "start"):
            other = (rival, number if rival != "start" else 0)
            if other in counts and arm != rival:
                below, above = limits(draws[arm, number] - draws[other], size, 0.95)
                row[f"minus_{rival.replace(' ', '_')}"] = [f1(own) - f1(counts[other]), below, above]
        rows.append(row)
    return {"sites": sites, "recordings": size, "rows": rows}


def text_of(results: dict[str, Any]) -> str:
    lines = [f"{results['recordings']} scored recordings of {len(results['sites'])} sites",
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


COLOURS = {"uncertain": "#0072b2", "random": "#009e73", "from scratch": "#d55e00", NOTHING: "#777777"}
NAMES = {"uncertain": "review, most uncertain first", "random": "review, drawn at random",
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


if __name__ == "__main__":
    main()
