"""F1 at an unseen site over the number of boxes that an expert has reviewed, queue by queue, beside labelling from scratch.

    python benchmarks/review_study.py --out study                     # three sites, a minute or two per point on two cores
    python benchmarks/review_study.py --out study --sites --picture docs/review_study.svg      # tables of what is there

Every site is a synthetic archive that the shipped detector has not heard: one day to review or to label, another to be
scored on, with all its truth. The expert is that truth. Reviewing: boxes of the detector are shown one by one, the most
uncertain first (`uncertain`), at random, or in groups of look-alikes (`cluster`); a box on a call (IoU 0.2 or more)
is set right, any other is rejected. `windows`: the window around the most uncertain box is gone through: its boxes are
judged, calls without a box are drawn, each of them counts. Labelling from scratch: recordings are gone through in random
order and every call is drawn, until there are as many boxes. All of them go through `mast learn`: the same training from
the same detector, and the model it keeps is scored at its own threshold. `nothing` is the detector that labelling
from scratch gives without a shipped one to start from. Intervals: 95 %, over the scored recordings of all sites and
seeds (a recording is drawn with all its seeds); differences are paired by recording.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from review_study_tables import NOTHING, f1, svg_of, tables_of, text_of

from mast_ray.config.errors import DataError

BOXES = (25, 50, 100)
ARMS = ("uncertain", "random", "windows", "cluster", "from scratch")
SAME_IOU, GOOD_IOU = 0.2, 0.7
HOURS, REVIEWED = 0.36, 0.7  # of sound per site, and the share of it to review
MINUTES = 0.5  # of a recording
WINDOW_S = 10.24


def main() -> None:
    args = arguments()
    sites = [Site(args.out / f"site{seed}", seed, args) for seed in args.sites]
    for seed, number, arm, site in itertools.product(args.seeds, args.boxes, args.arms, sites):
        try:
            site.point(arm, number, seed)
        except DataError as error:  # so few boxes may lie in one recording: `mast learn` refuses that
            print(f"no point: {arm}, {number} boxes, site {site.seed}: {error}")
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
        default=[201, 202, 203],
        help="seeds of the synthetic sites; none: tables only",
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1],
        help="of training, of random orders and of who is held out",
    )
    add("--boxes", type=int, nargs="+", default=list(BOXES))
    add("--arms", nargs="+", default=list(ARMS), choices=(*ARMS, NOTHING))
    add("--model", default="shipped:tiny")
    add("--snr-db", type=float, default=4.0, help="of the calls: harder than the detector was trained on")
    add("--density", type=float, default=80.0, help="calls per minute, of which the faintest are not there")
    add("--site-shift", type=float, default=2.5, help="how far the sites are from those of other archives")
    add("--clips-dir", default="", help="cut the calls from real clips, as `mast synth` does it")
    add("--scenes-dir", default="", help="backgrounds from real scenes")
    add("--hours", type=float, default=HOURS, help="of sound per site, two thirds of it to review")
    add("--steps", type=int, default=20, help="of training per point, of four chunks; the same for all arms")
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
                 "--labelled-share", REVIEWED, "--processes", 1)  # fmt: skip
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
            "--recipe", "tiny", "--set", "detect.embeddings=neck")  # fmt: skip
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

    def point(self, arm: str, number: int, seed: int) -> None:
        """One arm with so many boxes: learned, scored and written."""
        target = self.points / f"{arm.replace(' ', '_')}-{number}-{seed}.json"
        start = self.points / "start-0-0.json"
        if not start.exists():
            start.write_text(
                json.dumps(
                    {"arm": "start", "boxes": 0, "site": self.seed, "seed": 0, **self.scored(self.model)}
                )
            )
        if target.exists():
            return
        begun_s = time.process_time()
        work = self.folder / "work" / target.stem
        shutil.rmtree(work, ignore_errors=True)
        told = {"windows": self.gone_through, "from scratch": self.labelled, NOTHING: self.labelled}
        actions = told[arm](number, seed) if arm in told else self.reviewed(arm, number, seed)
        model, about = self.learned(actions, work, arm, seed)
        found = {"arm": arm, "boxes": number, "site": self.seed, "seed": seed, **about, **self.scored(model)}
        found["core_seconds"] = round(time.process_time() - begun_s)
        target.write_text(json.dumps(found))
        print(json.dumps({k: v for k, v in found.items() if k != "recordings"}), flush=True)
        shutil.rmtree(work, ignore_errors=True)

    def order(self, queue: str, seed: int) -> list[int]:
        """Rows of `found` as the page shows them."""
        from mast_ray.stages.review.queues import look_alikes, uncertain_order

        score = self.found.column("score").to_numpy().astype(np.float64)
        kept = np.flatnonzero(score >= self.threshold)
        if queue == "random":  # of what counts as a detection
            return np.random.default_rng([self.seed, seed, 7]).permutation(kept).tolist()
        if queue == "cluster":
            column = self.found.column("embedding").combine_chunks()
            vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
            _, home = np.unique(self.found.column("path").to_pylist(), return_inverse=True)
            groups = look_alikes(vectors.astype(np.float32), home.astype(np.int64), score, self.threshold)
            return [row for group in groups for row in group.rows.tolist()]
        return uncertain_order(score, self.threshold).tolist()

    def judged(self, row: dict[str, Any], queue: str, taken: dict[str, set[int]]) -> Any:
        """What the expert says about one box; the call it stands for is `taken` then."""
        from mast_ray.reporting.exports.rows import detection_id

        box = tuple(row[name] for name in ("begin_s", "end_s", "low_hz", "high_hz"))
        truth, own = self.truth.get(row["path"], []), taken.setdefault(row["path"], set())
        free = [n for n in range(len(truth)) if n not in own]
        best = max(free, key=lambda n: iou(box, truth[n]), default=None)
        overlap = iou(box, truth[best]) if best is not None else 0.0
        told: dict[str, Any] = {"action": "reject", "box": box, "label": ""}
        if best is not None and overlap >= SAME_IOU:
            own.add(best)
            good = overlap >= GOOD_IOU
            told = {"action": "accept" if good else "change", "box": box if good else truth[best][:4],
                    "label": truth[best][4]}  # fmt: skip
        name = detection_id(row["path"], *box)
        return self.action(told, row["path"], row["recording_id"], name, name, row["score"], queue)

    def reviewed(self, queue: str, number: int, seed: int) -> list[Any]:
        """What the expert does with the first boxes of a queue."""
        rows, taken = self.found.to_pylist(), {}
        return [self.judged(rows[place], queue, taken) for place in self.order(queue, seed)[:number]]

    def gone_through(self, number: int, seed: int) -> list[Any]:
        """Windows around the most uncertain boxes: boxes from the threshold on are judged, other calls drawn."""
        rows, taken, seen, actions, left = self.found.to_pylist(), {}, set(), [], number
        for place in self.order("uncertain", seed):
            middle_s = (rows[place]["begin_s"] + rows[place]["end_s"]) / 2
            if left <= 0:
                break
            if place in seen:
                continue
            path, recording_id = rows[place]["path"], rows[place]["recording_id"]
            begin_s = min(max(middle_s - WINDOW_S / 2, 0.0), MINUTES * 60 - WINDOW_S)
            end_s = begin_s + WINDOW_S
            inside = [n for n, row in enumerate(rows) if row["path"] == path and n not in seen and (row["score"] >= self.threshold or n == place)
                      and row["begin_s"] < end_s and row["end_s"] > begin_s]  # fmt: skip
            said = [
                self.judged(rows[n], "uncertain", taken)
                for n in sorted(inside, key=lambda n: -rows[n]["score"])
            ]
            for n, call in enumerate(self.truth.get(path, [])):
                if n not in taken[path] and call[0] < end_s and call[1] > begin_s:
                    taken[path].add(n)
                    said.append(
                        self.action({"action": "draw", "box": call[:4], "label": call[4]}, path, recording_id)
                    )
            seen |= {
                *inside,
                *(
                    n
                    for n, row in enumerate(rows)
                    if row["path"] == path and begin_s <= row["begin_s"] and row["end_s"] <= end_s
                ),
            }
            said = sorted(said, key=lambda one: one.begin_s)
            if len(said) > left:
                end_s = max(said[left].begin_s, begin_s + 0.1)
            looked = {"action": "looked", "box": (begin_s, end_s, None, None), "label": ""}
            actions += [*said[:left], self.action(looked, path, recording_id)]
            left -= len(said)
        return actions

    def labelled(self, number: int, seed: int) -> list[Any]:
        """Recordings gone through in random order, every call drawn, until there are so many boxes."""
        paths = sorted(
            str(p.relative_to(self.folder / "review")) for p in (self.folder / "review").rglob("*.wav")
        )
        ids = dict(
            zip(*(self.recordings().column(n).to_pylist() for n in ("path", "recording_id")), strict=True)
        )
        actions, left = [], number
        for place in np.random.default_rng([self.seed, seed, 9]).permutation(len(paths)).tolist():
            path = paths[place]
            if left <= 0 or path not in ids:
                continue
            calls = sorted(self.truth.get(path, []))
            boxes = calls[:left]
            end_s = calls[left][0] if len(calls) > left else MINUTES * 60
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

    def learned(self, actions: list[Any], work: Path, arm: str, seed: int) -> tuple[str, dict[str, Any]]:
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
        config = apply_overrides(
            tiny(), {"cluster.use_gpu": "no", "seed": seed, "self_train.stage2.max_steps": self.args.steps}
        )
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
        adapted = adapt(config, place.model, archive, str(work / "adapted"), 1e6, HERE)
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
        best = max(f1(sums_of(whole, limit).sums[:, :3]) for limit in np.linspace(0.05, 0.95, 91))
        return {"f1": f1(counts), "threshold": found.threshold.value, "f1_at_the_best_threshold": best,
                "recordings": counts.tolist()}  # fmt: skip


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


if __name__ == "__main__":
    main()
