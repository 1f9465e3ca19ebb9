"""Names of clips never heard: species of birds by recordists whose clips no name was learned from, against retrieval.

    python benchmarks/names_study.py --clips DATA/clips/birds --out names_study

Clips are a folder with recordings.csv (file, label, and recordist or freesound_id: who made it). The detector finds its boxes in them (at most three per
clip, at its own threshold), and each box has the label of its clip. Recordists are dealt into five folds; in turn one fold
is asked for what the others were taught. A fifth of the labels, another one each time, is never taught: those
boxes should be called unknown. Names are fitted as `mast classify` does it, on the taught boxes alone. The rival is the
label of the nearest taught box (`mast embed`); it calls a box unknown below the similarity at which it names as large a share of
the known boxes as our names do, which is read off the answers themselves and so flatters it. `kept`: the same at other
limits, both read off the answers: which share of the untaught labels is called unknown when so large a share of the known
boxes gets a name. `stated`: the limit is what `mast classify --precision` puts it to, from the taught recordists
alone. Intervals: 95 %, over recordists. The shipped detector has heard most of these clips, without their names: what is unheard is the names.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mast_ray.evaluation.naming.fitting import fit_names
from mast_ray.evaluation.naming.names import UNKNOWN, Examples
from mast_ray.evaluation.naming.shares import share_interval
from mast_ray.evaluation.similarity.retrieval import zero_shot_labels
from mast_ray.soundscapes.clips import Clip, read_clips

FOLDS, MOST_BOXES = 5, 3
KEPT = (0.1, 0.25, 0.5, 0.75)  # shares of known boxes that get a name
PRECISIONS = (0.3, 0.5, 0.7)  # stated to `mast classify --precision`


class Answers(NamedTuple):
    """What was said about boxes of a fold."""

    truth: list[str]  # "" for a label that was not taught
    nearest: list[str]
    confidence: list[float]
    is_named: list[bool]
    recordist: list[str]


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    examples = embedded_boxes(args)
    results: dict[str, Any] = {"model": args.model, "embedding": {}}
    for name, own in examples.items():
        results["embedding"][name] = study(own)
        results |= {"boxes": len(own.label), "labels": len(set(own.label.tolist())),
                    "recordists": len(set(own.group.tolist()))}  # fmt: skip
    (args.out / f"names_study_{args.least_recordists}.json").write_text(json.dumps(results, indent=1))
    print(text_of(results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--clips",
        type=Path,
        required=True,
        help="folder with recordings.csv: file, label, recordist or freesound_id",
    )
    add("--out", type=Path, required=True)
    add("--model", default="shipped:tiny")
    add("--least-recordists", type=int, default=3, help="labels that fewer people recorded are left out")
    add("--embeddings", nargs="+", default=["neck", "encoder"])
    return parser.parse_args()


def embedded_boxes(args: argparse.Namespace) -> dict[str, Examples]:
    """Embedding -> boxes of labels that enough recordists have, grouped by recordist."""
    from mast_ray.config.recipes import tiny
    from mast_ray.inference.embeddings import embed_boxes, load_embedder
    from mast_ray.inference.naming import examples_of
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.training.data.archive_inputs import read_as
    from mast_ray.training.files.shipped import model_folder

    rows = {str(Path(clip.path).relative_to(args.clips)): clip for clip in read_clips(str(args.clips))}
    archive, model = prepared_boxes(args, rows), model_folder(args.model, has_gpu=False)
    opened = open_prepared(str(archive))
    recordist_of = {
        recording: rows[path].source
        for recording, path in zip(
            opened.recording_ids, opened.recordings.column("path").to_pylist(), strict=True
        )
    }
    found = {}
    for name in args.embeddings:
        kept = args.out / f"{name}.npz"
        if not kept.exists():
            embedder = load_embedder(model, name, tiny())
            boxes = examples_of(
                embed_boxes(embedder, read_as(opened, embedder.card, model), opened.labels, tiny())
            )
            np.savez(kept, embedding=boxes.embedding, boxes=boxes.boxes, label=boxes.label.astype(str),
                     group=boxes.group.astype(str))  # fmt: skip
        stored = np.load(kept)
        people = np.array([recordist_of[recording] for recording in stored["group"]], object)
        own = Examples(stored["embedding"], stored["boxes"], stored["label"].astype(object), people)
        many = {
            label for label in set(own.label) if len(set(people[own.label == label])) >= args.least_recordists
        }
        found[name] = own.take(np.isin(own.label, list(many)))
    return found


def prepared_boxes(args: argparse.Namespace, rows: dict[str, Clip]) -> Path:
    """Detect in the clips, label the strongest boxes with their clip's label, and prepare that."""
    from mast_ray.reporting.detection_tables import model_threshold, read_detections
    from mast_ray.verbs.main import run_verb

    detections, tables, prepared = (args.out / name for name in ("detections", "boxes.csv", "prepared"))
    common = ("--runner", "here", "--recipe", "tiny")
    if (prepared / "manifest.json").exists():
        return prepared
    assert run_verb("detect", [args.model, str(args.clips), "--out", str(detections), *common]) in (0, 4)
    own: dict[str, list[dict[str, Any]]] = {}
    for row in read_detections(str(detections), model_threshold(str(detections))).to_pylist():
        own.setdefault(row["path"], []).append(row)
    with tables.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "begin_s", "end_s", "low_hz", "high_hz", "label"))
        for path, boxes in own.items():
            for box in sorted(boxes, key=lambda box: -box["score"])[:MOST_BOXES]:
                measures = [box[name] for name in ("begin_s", "end_s", "low_hz", "high_hz")]
                writer.writerow([path, *measures, rows[path].label])
    argv = [str(args.clips), "--annotations", str(tables), "--out", str(prepared), *common]
    assert run_verb("prepare", argv) in (0, 4)
    return prepared


def study(examples: Examples) -> dict[str, Any]:
    """Figures of names and of the nearest box over all folds together."""
    rng = np.random.default_rng(0)
    people, labels = sorted(set(examples.group.tolist())), sorted(set(examples.label.tolist()))
    fold_of = dict(zip(people, rng.permutation(len(people)) % FOLDS, strict=True))
    left_out_of = dict(zip(labels, rng.permutation(len(labels)) % FOLDS, strict=True))
    fold = np.array([fold_of[name] for name in examples.group])
    left_out = np.array([left_out_of[name] for name in examples.label])
    ours, nearest, kinds = [], [], []
    stated: dict[float, list[Answers]] = {share: [] for share in PRECISIONS}
    missed = dict.fromkeys(PRECISIONS, 0)
    for number in range(FOLDS):
        taught = examples.take((fold != number) & (left_out != number))
        asked = examples.take(fold == number)
        known = np.isin(asked.label, list(set(taught.label.tolist())))
        is_asked = known | (
            left_out[fold == number] == number
        )  # a label that no other recordist has cannot be asked
        asked, known = asked.take(is_asked), known[is_asked]
        truth = [label if is_known else "" for label, is_known in zip(asked.label, known, strict=True)]
        fitted = fit_names(taught, None)
        kinds.append(f"{fitted.names.kind}{', with shape' if fitted.names.uses_shape else ''}")
        named = fitted.names.named(asked.embedding, asked.boxes)
        sure = [label != UNKNOWN for label in named.label]
        ours.append(
            Answers(truth, list(named.nearest), named.confidence.tolist(), sure, asked.group.tolist())
        )
        for share in PRECISIONS:
            other = fit_names(taught, None, precision=share)
            missed[share] += other.misses_precision
            sure = [value >= other.names.unknown_below for value in named.confidence.tolist()]
            stated[share].append(ours[-1]._replace(is_named=sure))
        alike = zero_shot_labels(asked.embedding, taught.embedding, taught.label.tolist())
        similar = alike.similarity.tolist()
        nearest.append(
            Answers(truth, list(alike.nearest_label), similar, [True] * len(truth), asked.group.tolist())
        )
    names, rival = joined(ours), joined(nearest)
    share = np.mean([sure for sure, truth in zip(names.is_named, names.truth, strict=True) if truth])
    known = np.array([bool(truth) for truth in rival.truth])
    limit = np.quantile(np.array(rival.confidence)[known], 1 - share)
    rival = rival._replace(is_named=[value >= limit for value in rival.confidence])
    return {
        "kinds": kinds,
        "names": figures(names),
        "nearest box": figures(rival),
        "difference": difference(names, rival),
        "kept": {str(kept): at_kept(names, rival, kept) for kept in KEPT},
        "stated": {
            str(share): figures(joined(own)) | {"folds_without_a_limit": missed[share]}
            for share, own in stated.items()
        },
    }


def at_kept(names: Answers, rival: Answers, kept: float) -> dict[str, Any]:
    """Both with limits at which they name so large a share of the known boxes."""
    both = []
    for one in (names, rival):
        known = np.array([bool(truth) for truth in one.truth])
        limit = np.quantile(np.array(one.confidence)[known], 1 - kept)
        both.append(one._replace(is_named=[value >= limit for value in one.confidence]))
    shown = ("named_right", "unknown_rejected", "all_right")
    own = [{name: figures(one)[name] for name in shown} for one in both]
    return {"names": own[0], "nearest box": own[1], "difference": difference(*both)}


def joined(parts: list[Answers]) -> Answers:
    return Answers(*([value for own in column for value in own] for column in zip(*parts, strict=True)))


def figures(one: Answers) -> dict[str, list[float]]:
    """Estimate and limits of every share, over recordists."""
    truth, nearest = np.array(one.truth, object), np.array(one.nearest, object)
    named, people, known = np.array(one.is_named), np.array(one.recordist, object), truth != ""
    right = truth == nearest
    shares = {
        "top_1": (right[known], people[known]),
        "named": (named[known], people[known]),
        "named_right": (right[known & named], people[known & named]),
        "given_right": (right[named], people[named]),  # of all names that were given, to untaught labels too
        "unknown_rejected": (~named[~known], people[~known]),
        "all_right": (np.where(known, right & named, ~named), people),
    }
    return {name: list(share_interval(*values)[:3]) + [len(values[0])] for name, values in shares.items()}


def difference(names: Answers, rival: Answers, num_draws: int = 2000) -> dict[str, list[float]]:
    """Names minus nearest box with limits, recordists drawn alike for both."""
    from mast_ray.evaluation.intervals import limits

    truth = np.array(names.truth, object)
    known = truth != ""
    people, code = np.unique(np.array(names.recordist), return_inverse=True)
    drawn = np.random.default_rng(0).integers(0, len(people), (num_draws, len(people)))
    weights = np.stack([np.bincount(row, minlength=len(people)) for row in drawn])[:, code]  # (draws, boxes)
    found = {}
    for name, rows in (
        ("top_1", known),
        ("unknown_rejected", ~known),
        ("all_right", np.ones(len(truth), bool)),
    ):
        gains = []
        for one in (names, rival):
            right, sure = np.array(one.nearest, object) == truth, np.array(one.is_named)
            value = {
                "top_1": right,
                "unknown_rejected": ~sure,
                "all_right": np.where(known, right & sure, ~sure),
            }[name]
            gains.append(value[rows].astype(float))
        gain = gains[0] - gains[1]
        own = weights[:, rows]
        draws = (own @ gain) / np.maximum(own.sum(axis=1), 1)
        found[name] = [float(gain.mean()), *limits(draws, len(people))]
    return found


def _cell(found: list[float]) -> str:
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def text_of(results: dict[str, Any]) -> str:
    lines = [
        f"{results['boxes']} boxes of {results['labels']} labels by {results['recordists']} recordists, {results['model']}"
    ]
    for name, found in results["embedding"].items():
        lines.append(f"\n{name} ({', '.join(sorted(set(found['kinds'])))})")
        for figure in ("top_1", "named", "named_right", "given_right", "unknown_rejected", "all_right"):
            cells = [f"{found[who][figure][0]:.3f} [{found[who][figure][1]:.3f}, {found[who][figure][2]:.3f}]"
                     for who in ("names", "nearest box")]  # fmt: skip
            gain = found["difference"].get(figure)
            told = f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]" if gain else ""
            lines.append(f"  {figure:<18} {cells[0]:<24} {cells[1]:<24} {told}")
        for kept, own in found["kept"].items():
            gain = own["difference"]["unknown_rejected"]
            lines.append(
                f"  {kept} of the known named: right {_cell(own['names']['named_right'])} and {_cell(own['nearest box']['named_right'])}; "
                f"untaught called unknown {_cell(own['names']['unknown_rejected'])} and {_cell(own['nearest box']['unknown_rejected'])}, "
                f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"
            )
        for share, own in found["stated"].items():
            told = ", ".join(
                f"{name} {_cell(own[name])}" for name in ("named", "given_right", "unknown_rejected")
            )
            lines.append(
                f"  --precision {share}: {told}; no limit in {own['folds_without_a_limit']} of {FOLDS} folds"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
