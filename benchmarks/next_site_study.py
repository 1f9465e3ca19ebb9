"""What works at the next site? An archive of real clips and scenes, many named settings trained alike on it, one table.

One day at one site is labelled. The pool holds animals that the expert has not labelled, later dates and two unseen sites have
others again (`mast synth --sources four-ways`); the last unseen site's other days are in the pool, unlabelled, and one further site
has the few labels that choose weights and thresholds. Every row of ROWS is a list of `--set` knobs for `mast train`, `mast pretrain` or
`mast self-train`; rows run side by side on one GPU and leave counts per recording (next_site_scores.py), so that any two of them
can be compared with paired intervals.

    python benchmarks/next_site_study.py --work DIR --clips-dir CLIPS --scenes-dir SCENES --seconds 480 --parallel 6
    python benchmarks/next_site_study.py --work DIR --table                         # what is finished, as Markdown
    python benchmarks/next_site_study.py --list                                     # rows and their settings

Finished runs are skipped and no run is started that cannot end before the deadline, so a study may be spread over sittings: run the same
command again. Runs of several machines are joined by copying their DIR/results folders into one.

Every run asks Ray for its share of a GPU (1 / --parallel; of the cores where there is none). After `ray start --head` several studies,
and searches beside them, share the GPUs of that cluster (RAY_ADDRESS=auto); otherwise the study starts Ray for itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

RIVALS = (
    "fcos_slower",
    "resnet_fpn",
    "mast_printed",
    "field",
    "field_pretrained",
    "self_trained_control",
    "self_trained_control_last",
)


@dataclass(frozen=True)
class Row:
    """One named setting."""

    name: str
    sets: tuple[str, ...] = ()
    verb: Literal["train", "pretrain", "self-train", "given"] = "train"  # given: a model that is only scored
    start: str = ""  # row whose encoder (train) or detector (self-train) it starts from, with the same seed
    with_rows: tuple[str, ...] = ()  # rows whose settings come first
    is_committee: bool = False  # self-train: detectors of the other seeds label the pool too
    also: tuple[str, ...] = ()  # and these rows' detectors of every seed
    trains_on: tuple[str, ...] = ("prepared",)  # folders of the study's archive and of the formulas' one
    model: str = ""  # of a given row
    inside: str = ""  # folder below the model of the row it starts from, where another one is meant
    encoder: str = ""  # row whose encoder first lessons begin with

    def all_sets(self) -> tuple[str, ...]:
        return (*(one for name in self.with_rows for one in ROWS[name].all_sets()), *self.sets)


def _rows(*rows: Row) -> dict[str, Row]:
    return {row.name: row for row in rows}


# `mast_printed` names every knob that later work added, so that a change of defaults does not change the row.
PRINTED = (
    "model.adapter=upsampling", "model.finest_level=8x4", "spectrogram.background=none", "augment.most_per_example=3", "augment.gain=0.3",
    "augment.gain_db=0", "augment.equaliser_db=0", "augment.frequency_shift_bins=4", "augment.shift_edges=silence", "augment.mix_style=0",
    "augment.background=0.3", "augment.background_from=labelled", "augment.zoom=1", "augment.reverse=0",
    "augment.bend=0", "evaluate.post=none",
)  # fmt: skip
KINDS = {
    "gain": ("augment.gain_db=12",),
    "equaliser": ("augment.equaliser_db=6",),
    "shift": ("augment.frequency_shift_bins=16", "augment.shift_edges=repeat"),
    "mix_style": ("augment.mix_style=0.7",),
    "background": ("augment.background=1.0", "augment.background_from=pool"),
}
STRONG = ("augment.most_per_example=5", *(one for sets in KINDS.values() for one in sets))
# The paper's curriculum at the rates of supervised training, and what took its place: a band of ignored boxes between two
# thresholds, mixed batches, a moving teacher, averaged weights, the best round.
OLD_STAGES = (
    "self_train.curriculum=two_stage", "self_train.policy=tuned", "self_train.ignore_above=0", "self_train.contrastive_on_pseudo=true",
    "self_train.average_with_teacher=0", "self_train.keep=last",
)  # fmt: skip
NEW_STAGES = (
    "self_train.curriculum=mixed", "self_train.policy=precision", "self_train.contrastive_on_pseudo=false",
    "self_train.teacher=moving_average", "self_train.average_with_teacher=auto", "self_train.keep=best",
    "self_train.precision_target=0.7", "self_train.ignore_above=0.35", "self_train.empty_chunks=negative",
    "self_train.expert_share=0.25",
)  # fmt: skip

# A student from nothing, at the rate of supervised training.
FRESH = (*NEW_STAGES, "self_train.student=fresh", "self_train.stage1.backbone_multiplier=1.0")

# Labels of a committee: a call that a third of the hearings find has a third of the score, and is no background.
FIXED = (*NEW_STAGES, "self_train.teacher=fixed")
WIDE_BAND = ("self_train.ignore_above=0.1",)

TEACHER = "field"
UNLIKE = ("field_bend", "resnet_fpn_field")  # other augmentation, other network
DECAYED = ("detector.backbone_multiplier=1.0", "detector.layer_decay=0.75")
RESNET = ("model.name=resnet_fpn", "detector.backbone_multiplier=1.0")
RAW = ("pretrain.target=raw",)  # until rows with normalised patches showed in detection
RANDOM = ("pretrain.target=patch_normalised", "pretrain.masking=random")

LESSONS = ("detector.backbone_multiplier=1.0",)
LEARNED = "first_lessons/round1/stage1"  # what first lessons end with
AT_THE_END = ("detector.validate_every_epochs=1000",)
# Both stages of a round at the rates of a training from nothing, the second twice as long as the first training on experts' boxes, its
# last weights; labels as precise as the teachers are at their own threshold (at 0.7 students learn the wrong boxes too); short calls
# are taught too.
TWO_STAGES = (
    "self_train.curriculum=two_stage", "self_train.teacher_hearings=3", "self_train.min_duration_s=0.03",
    "self_train.precision_target=0.85",
    "self_train.stage1.backbone_multiplier=1.0", "self_train.stage2.learning_rate=3e-4", "self_train.stage2.backbone_multiplier=1.0",
    "self_train.stage2.validate_every_epochs=1000",
)  # fmt: skip

# Calls drawn by formulas over drawn backgrounds: no sound that anybody recorded is in them.
FORMULAS = "formulas_prepared"


def epochs(number: int) -> tuple[str, ...]:
    """Of a row whose archive is of another size."""
    return (
        f"detector.epochs={number}",
        f"detector.warmup_epochs={0.05 * number:.2f}",
        f"detector.validate_every_epochs={number / 3:.2f}",
    )


TIMES_AS_LONG = {"long": 3, "longer": 4}  # how a row's name ends -> times the passes over experts' boxes


# `field` is what the recipe of that name trains; its rows change one thing each.
ROWS = _rows(
    # the rival is the best of three rates by the development site, 1e-3: at the highest one of two seeds hardly learns
    *(
        Row(f"fcos{name}", (*PRINTED[2:], "model.name=fcos", f"detector.learning_rate={rate}"))
        for name, rate in {"": "3e-3", "_slower": "1e-3", "_slow": "3e-4"}.items()
    ),
    Row("resnet_fpn", (*PRINTED[1:], *RESNET)),
    Row("resnet_fpn_median", ("spectrogram.background=median",), with_rows=("resnet_fpn",)),
    Row("mast_printed", PRINTED),
    Row("hybrid", ("model.adapter=hybrid",), with_rows=("mast_printed",)),
    Row("hybrid_median", ("spectrogram.background=median",), with_rows=("hybrid",)),
    *(
        Row(f"hybrid_median_{kind}", sets, with_rows=("hybrid_median",))
        for kind, sets in KINDS.items()
        if kind != "shift"
    ),
    Row("hybrid_median_strong", STRONG, with_rows=("hybrid_median",)),
    Row("unzoomed", KINDS["shift"], with_rows=("hybrid_median",)),
    Row("unreversed", ("augment.zoom=2",), with_rows=("unzoomed",)),
    Row("field", ("augment.reverse=0.5", "evaluate.post=card"), with_rows=("unreversed",)),
    Row("field_undoubted", ("evaluate.post=none",), with_rows=("field",)),
    Row("field_bend", ("augment.bend=0.6",), with_rows=("field",)),
    Row("field_wide_shift", ("augment.frequency_shift_bins=32",), with_rows=("field",)),
    Row("field_mixup", ("augment.mixup=0.3",), with_rows=("field",)),
    Row("field_4x4", ("model.finest_level=4x4",), with_rows=("field",)),
    Row("field_long", (), with_rows=("field",)),
    Row("field_longer", (), with_rows=("field",)),
    # what `field` misses is seldom faint: it lies among other calls
    Row("field_mixup_long", ("augment.mixup=0.5",), with_rows=("field",)),
    Row("resnet_fpn_field", RESNET, with_rows=("field",)),
    Row("formulas", epochs(20), with_rows=("field",), trains_on=(FORMULAS,)),
    Row("field_from_formulas", ("detector.backbone_multiplier=1.0",), start="formulas", with_rows=("field",)),
    Row("field_with_formulas", epochs(15), with_rows=("field",), trains_on=("prepared", FORMULAS)),
    Row("encoder", RAW, "pretrain", with_rows=("field",)),
    Row("encoder_alone", (*RAW, "pretrain.side_path=false"), "pretrain", with_rows=("field",)),
    Row("encoder_normalised", ("pretrain.target=patch_normalised",), "pretrain", with_rows=("field",)),
    Row("encoder_random", RANDOM, "pretrain", with_rows=("field",)),
    Row(
        "encoder_third",
        (*RAW, "pretrain.epochs=20", "pretrain.warmup_epochs=1"),
        "pretrain",
        with_rows=("field",),
    ),
    Row("field_pretrained", (), start="encoder", with_rows=("field",)),
    Row("field_pretrained_alone", (), start="encoder_alone", with_rows=("field",)),
    Row("field_pretrained_decay", DECAYED, start="encoder", with_rows=("field",)),
    Row(
        "field_pretrained_full", ("detector.backbone_multiplier=1.0",), start="encoder", with_rows=("field",)
    ),
    Row("field_pretrained_frozen", ("detector.unfrozen_blocks=0",), start="encoder", with_rows=("field",)),
    Row("field_pretrained_normalised", (), start="encoder_normalised", with_rows=("field",)),
    Row("field_pretrained_random", (), start="encoder_random", with_rows=("field",)),
    Row("field_pretrained_third", (), start="encoder_third", with_rows=("field",)),
    Row("field_pretrained_long", (), start="encoder", with_rows=("field",)),
    *(
        Row(f"self_trained{name}", sets, "self-train", TEACHER, (TEACHER,))
        for name, sets in {
            "_old": OLD_STAGES,
            "": NEW_STAGES,
            "_strict": (*NEW_STAGES, "self_train.precision_target=0.85", "self_train.ignore_above=auto"),
            "_strong": (*NEW_STAGES, "self_train.augmentation=own"),
            "_control": (*NEW_STAGES, "self_train.curriculum=control"),
            "_ceiling": (*NEW_STAGES, "self_train.curriculum=ceiling"),
            "_fixed_teacher": (*NEW_STAGES, "self_train.teacher=fixed"),
            "_no_band": (*NEW_STAGES, "self_train.ignore_above=0"),
            "_unaveraged": (*NEW_STAGES, "self_train.average_with_teacher=0"),
            "_fresh": FRESH,
            "_fresh_ceiling": (*FRESH, "self_train.curriculum=ceiling"),
        }.items()
    ),
    *(
        Row(
            f"self_trained{name}",
            ("self_train.teacher_hearings=3", *sets),
            "self-train",
            teacher,
            (TEACHER,),
            True,
            {"_committee_unlike": UNLIKE, "_committee_pieces": ("pieces",)}.get(name, ()),
        )
        for name, sets, teacher in (
            ("_committee", FIXED, TEACHER),
            # six detectors of three kinds, each of which hears once
            ("_committee_unlike", (*FIXED, *WIDE_BAND, "self_train.teacher_hearings=1"), TEACHER),
            # what lies as calls do, whatever the animal
            ("_committee_pieces", (*FIXED, *WIDE_BAND), TEACHER),
            ("_committee_wide_band", (*FIXED, *WIDE_BAND), TEACHER),
            ("_committee_pressed", (*FIXED, *WIDE_BAND, "self_train.teacher_hearings=6"), TEACHER),
            ("_fresh_committee", FRESH, TEACHER),
            ("_fresh_committee_even", (*FRESH, "self_train.expert_share=0.5"), TEACHER),
            ("_second", FRESH, "self_trained_fresh_committee"),  # the students label the pool together
        )
    ),
)
ROWS |= _rows(
    Row("energy", verb="given", model="shipped:energy"),  # was never trained
    # what stands out, put together as the experts' boxes say: no network
    Row("pieces", ("model.name=pieces",), with_rows=("field",)),
    # what that finds in the whole pool is learned first (mast train --start shipped:energy), the experts' boxes then
    Row("field_lessons", LESSONS, start="energy", with_rows=("field",)),
    # after the same lessons: weights of the end, whatever the development site prefers; three times the steps on experts' boxes
    *(
        Row(
            f"field_lessons_{name}",
            (*LESSONS, *AT_THE_END),
            start="field_lessons",
            inside=LEARNED,
            with_rows=("field",),
        )
        for name in ("last", "last_long")
    ),
    # the paper's share of the encoder that learns: the recipe had it, and no row did
    Row(
        "field_frozen",
        ("detector.unfrozen_blocks=4", "detector.backbone_multiplier=0.1"),
        with_rows=("field",),
    ),
    # no pushing apart of boxes from what lies beside them: most of what it pushes away lies within a call
    Row("field_uncontrasted", ("detector.lambda_con=0",), with_rows=("field",)),
    # how much the places of boxes weigh beside what is a call
    *(
        Row(
            f"field_boxes_{name}",
            (f"detector.lambda_box={box}", f"detector.lambda_iou={iou}"),
            with_rows=("field",),
        )
        for name, box, iou in (("half", 0.125, 1.0), ("double", 0.5, 4.0))
    ),
    # lessons that take calls under 0.1 s for calls
    Row(
        "field_lessons_short",
        (*LESSONS, "self_train.min_duration_s=0.03", "self_train.min_bins=1"),
        start="energy",
        with_rows=("field",),
    ),
    # weights between what the pool has taught and what the experts have: the share that the development site prefers
    Row(
        "lessons_averaged",
        (
            "self_train.curriculum=stage2_only",
            "self_train.average_with_teacher=auto",
            "self_train.keep=last",
            "self_train.stage2.learning_rate=3e-4",
            "self_train.stage2.backbone_multiplier=1.0",
            "self_train.stage2.epochs=30",
            "self_train.stage2.warmup_epochs=1.5",
            "self_train.stage2.lambda_con=0.5",
            "self_train.stage2.augment_probability=0.9",
        ),
        "self-train",
        "field_lessons",
        ("field",),
        inside=LEARNED,
    ),
    # all that the pool can teach: masked pretraining, then first lessons, then the experts' boxes
    Row("pretrained_lessons", LESSONS, start="energy", with_rows=("field",), encoder="encoder_normalised"),
    Row(
        "pretrained_lessons_full",
        (*LESSONS, *epochs(200)),
        start="energy",
        with_rows=("field",),
        encoder="encoder_normalised",
    ),
    # as many passes over the experts' boxes as the recipe makes by itself
    Row("field_full", epochs(200), with_rows=("field",)),
    Row("field_lessons_full", (*LESSONS, *epochs(200)), start="energy", with_rows=("field",)),
    Row("field_lessons_mixup_long", (*LESSONS, "augment.mixup=0.5"), start="energy", with_rows=("field",)),
    *(
        Row(f"lessons_{name}", sets, "self-train", "field_lessons", ("field",), is_committee)
        for name, sets, is_committee in (
            ("control", (*NEW_STAGES, "self_train.curriculum=control"), False),
            ("self_trained", (*FIXED, *WIDE_BAND, "self_train.teacher_hearings=3"), True),
            ("two_stage", (*FIXED, *WIDE_BAND, *TWO_STAGES, "self_train.average_with_teacher=0"), True),
            ("fresh_two_stage", (*FIXED, *WIDE_BAND, *TWO_STAGES, "self_train.student=fresh"), True),
            ("ceiling", (*NEW_STAGES, "self_train.curriculum=ceiling"), False),
        )
    ),
)
# A tenth of the labels for as many steps: what pretraining, and a teacher that needs no labels, are for.
FEW = ("split.budget_chunks=128",)
FEW_EPOCHS = epochs(300)
ROWS |= _rows(
    Row("few", (*FEW, *FEW_EPOCHS), with_rows=("field",)),
    Row("few_long", (*FEW, *epochs(900)), with_rows=("field",)),
    Row("few_longer", (*FEW, *epochs(1200)), with_rows=("field",)),
    Row("few_pieces", FEW, with_rows=("pieces",)),
    Row("few_pretrained", (*FEW, *FEW_EPOCHS), start="encoder", with_rows=("field",)),
    Row("few_lessons", (*FEW, *FEW_EPOCHS), start="energy", with_rows=("field_lessons",)),
    # a second round by the detectors of both seeds, where experts say least
    Row(
        "few_lessons_two_stage",
        (*FEW, *ROWS["lessons_fresh_two_stage"].sets, "self_train.stage2.epochs=600"),
        "self-train",
        "few_lessons",
        ("field",),
        is_committee=True,
    ),
    *(
        Row(
            f"few_{name}",
            (*FEW, *ROWS[f"self_trained{row}"].sets),
            "self-train",
            "few",
            ("field",),
            is_committee,
        )
        for name, row, is_committee in (
            ("control", "_control", False),
            ("self_trained", "_committee_wide_band", True),
            ("ceiling", "_ceiling", False),
        )
    ),
)
SUPERVISED = ("fcos", "resnet_fpn", "resnet_fpn_median", "mast_printed", "hybrid", "field")


@dataclass
class Job:
    """A row with a seed: the commands of one process, and when it ran."""

    row: Row
    seed: int
    started_s: float = 0.0
    task: Any = field(default=None, repr=False)  # of Ray: ends with the exit code

    @property
    def name(self) -> str:
        return f"{self.row.name}-seed{self.seed}"


def main() -> None:
    args = arguments()
    for name, row in ROWS.items():
        if row.verb == "self-train":
            named = [args.self_train_from if one == TEACHER else one for one in (row.start, *row.with_rows)]
            others = tuple(TEACHER if one == named[0] else one for one in row.also)
            ROWS[name] = replace(row, start=named[0], with_rows=tuple(named[1:]), also=others)
    if args.job:
        run_job(Path(args.job))
    elif args.list:
        for row in ROWS.values():
            print(
                f"{row.name:<28} {row.verb:<10} {'from ' + row.start if row.start else '':<16} {' '.join(row.all_sets())}"
            )
    elif args.table:
        print_table(args)
    else:
        args.deadline_s = time.monotonic() + args.seconds
        args.work.mkdir(parents=True, exist_ok=True)
        make_archive(args)
        if any(FORMULAS in ROWS[name].trains_on for name in with_starts(args.rows)):
            make_formulas(args)
        run_all(args)
        print_table(args)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, default=Path("runs/next_site"), help="folder of everything")
    add("--clips-dir", default="", help="real clips (folders with recordings.csv)")
    add("--scenes-dir", default="", help="real scenes")
    add(
        "--rows",
        nargs="+",
        default=list(SUPERVISED),
        metavar="NAME",
        help="rows to run, the most wanted first",
    )
    add("--seeds", type=int, nargs="+", default=[0, 1])
    add("--seconds", type=float, default=480.0, help="no run is started that cannot end within this time")
    add("--parallel", type=int, default=6, help="runs side by side on a GPU")
    add("--resume-later", action="store_true",
        help="start runs that cannot end in time too: the next sitting goes on from their checkpoints")  # fmt: skip
    add("--guess", type=float, default=150.0, help="seconds of a run of which none was seen yet")
    add("--hours", type=float, default=24.0)
    add("--labelled-hours", type=float, default=2.4)
    add("--minutes", type=float, default=2.0, help="per recording")
    add(
        "--sites",
        type=int,
        default=7,
        help="1 labelled, 1 for the choice of models, the unseen ones, the others pool",
    )
    add("--unseen-sites", type=int, default=2)
    add(
        "--dev-sites",
        type=int,
        default=1,
        help="sites with a few labels, for the choice of weights and thresholds",
    )
    add("--days", type=int, default=6)
    add("--test-days", type=int, default=2)
    add("--density", type=float, default=20.0, help="calls per minute")
    add(
        "--formula-hours", type=float, default=6.0, help="of the archive of drawn calls, where a row wants it"
    )
    add("--processes", type=int, default=os.cpu_count() or 1, help="of synth and prepare")
    add("--size", default="small", help="encoder")
    add("--recipe", default="field")
    add("--epochs", type=int, default=30)
    add("--batch-size", type=int, default=32)
    add("--learning-rate", type=float, default=3e-4)
    add("--pretrain-epochs", type=int, default=100)
    add("--pretrain-batch-size", type=int, default=256)
    add(
        "--self-train-epochs",
        type=int,
        default=2,
        help="of stage 1 and of mixed batches, in passes over the pool",
    )
    add("--rounds", type=int, default=1)
    add("--self-train-from", default=TEACHER, metavar="ROW", help="whose detector self-training begins with")
    add("--validations", type=int, default=3, help="times a run is validated")
    add(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for every row, after its own",
    )
    add("--table", action="store_true")
    add("--list", action="store_true")
    add("--rivals", nargs="+", default=list(RIVALS))
    add("--job", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


# The archive


def make_archive(args: argparse.Namespace) -> None:
    """Synthesise and prepare, where that is not done."""
    archive, prepared = args.work / "archive", args.work / "prepared"
    real = ["--clips-dir", args.clips_dir, "--scenes-dir", args.scenes_dir] if args.clips_dir else []
    sources = ["--sources", "four-ways"] if args.clips_dir else []
    share = str(args.labelled_hours / args.hours)
    synth = ["synth", "--out", str(archive), "--hours", str(args.hours), "--minutes", str(args.minutes), "--sites", str(args.sites),
             "--days", str(args.days), "--unseen-sites", str(args.unseen_sites), "--dev-sites", str(args.dev_sites), "--test-days",
             str(args.test_days), "--unseen-pool-sites", "1", "--labelled-share", share, "--density", str(args.density), "--processes",
             str(args.processes), *sources, *real]  # fmt: skip
    if not (archive / "truth.csv").exists():
        timed("synth", [sys.executable, "-m", "mast_ray", *synth])
    if not (prepared / "manifest.json").exists():
        labels = ["--annotations", str(archive / "annotations"), "--table", str(archive / "recordings.csv")]
        sets = [*splits_of(archive), f"prepare.processes={args.processes}", "prepare.recordings_per_unit=16"]
        prepare = [
            "prepare",
            str(archive / "audio"),
            *labels,
            "--out",
            str(prepared),
            "--runner",
            "here",
            *as_flags(sets),
        ]
        timed("prepare", [sys.executable, "-m", "mast_ray", *prepare])


def make_formulas(args: argparse.Namespace) -> None:
    """A second archive, of drawn calls at many sites, all of it labelled and trained on."""
    archive, prepared = args.work / "formulas", args.work / FORMULAS
    if not (archive / "truth.csv").exists():
        synth = ["synth", "--out", str(archive), "--hours", str(args.formula_hours), "--minutes", "0.5", "--sites", "12", "--days", "3",
                 "--seed", "101", "--site-shift", "1.3", "--snr-db", "10", "--density", "18", "--processes",
                 str(args.processes)]  # fmt: skip
        timed("synth", [sys.executable, "-m", "mast_ray", *synth])
    if not (prepared / "manifest.json").exists():
        sets = [
            "split.train=0.96",
            "split.val=0.04",
            f"prepare.processes={args.processes}",
            "prepare.recordings_per_unit=16",
        ]
        prepare = ["prepare", str(archive / "audio"), "--annotations", str(archive / "truth.csv"), "--table",
                   str(archive / "recordings.csv"), "--out", str(prepared), "--runner", "here", *as_flags(sets)]  # fmt: skip
        timed("prepare", [sys.executable, "-m", "mast_ray", *prepare])


def splits_of(archive: Path) -> list[str]:
    """The split's knobs, as the roles of the recordings say."""
    with (archive / "recordings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    def named(column: str, *roles: str) -> str:
        values = {
            row[column][:10] if column == "start_time" else row[column]
            for row in rows
            if row["role"] in roles
        }
        return f"[{', '.join(sorted(values))}]"

    return [
        f"split.ood_sites={named('site', 'site_ood')}",
        f"split.ood_dev_sites={named('site', 'ood_dev')}",
        f"split.ood_dates={named('start_time', 'temporal_ood')}",
        "split.ood_pool=untested",
    ]


def timed(name: str, command: list[str]) -> None:
    started_s = time.monotonic()
    code = subprocess.run(command).returncode
    print(f"== {name}: {time.monotonic() - started_s:.0f} s", flush=True)
    if code not in (0, 4):
        sys.exit(code)


# Runs side by side


class Slots:
    """Shares of the GPUs that Ray knows of, of the cores where it knows of none: `number` runs go on at once."""

    def __init__(self, parallel: int) -> None:
        import ray

        ray.init(log_to_driver=False, include_dashboard=False, logging_level="warning")
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        share = {"num_gpus": 1 / parallel} if gpus else {"num_cpus": resources["CPU"] / parallel}
        self.number = parallel * max(1, gpus)
        self._ray = ray
        self._task = ray.remote(**({"num_cpus": 0} | share), max_retries=0)(run_to_its_end)

    def start(self, job: Job, command: list[str], log: Path) -> None:
        environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
        for name in ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            environment |= {name: os.environ[name]} if name in os.environ else {}
        job.task = self._task.remote(command, str(log.resolve()), os.getcwd(), environment)

    def is_over(self, job: Job) -> bool:
        return bool(self._ray.wait([job.task], timeout=0)[0])

    def stop(self, jobs: Sequence[Job]) -> None:
        """End them as Ctrl-C would: their newest checkpoints stay, and the same command goes on from there."""
        tasks = [job.task for job in jobs if job.task is not None]
        for task in tasks:
            self._ray.cancel(task)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=20.0)
        self._ray.shutdown()


def run_to_its_end(command: list[str], log: str, folder: str, environment: dict[str, str]) -> int:
    """Run a command in a process of its own; if it is cancelled, the process is asked to stop."""
    with Path(log).open("ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | environment
        )
        try:
            while process.poll() is None:
                time.sleep(0.2)  # a cancelled task hears of it between two steps of Python
            return process.returncode
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=15.0)
                except subprocess.TimeoutExpired:
                    process.kill()


# The runs


def run_all(args: argparse.Namespace) -> None:
    """Start jobs as slots come free, the most wanted first, until all are done or the deadline is near."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    slots = Slots(args.parallel)
    waiting = jobs_of(args)
    running: list[Job] = []
    failed: set[str] = set()
    seen_s = known_seconds(args)
    try:
        while waiting or running:
            for job in [job for job in running if slots.is_over(job)]:
                running.remove(job)
                finish(job, args, failed, seen_s)
            for job in [job for job in waiting if (before := start_of(job, args)) and before.name in failed]:
                waiting.remove(job)
                failed.add(job.name)
                print(f"-- {job.name}: left out, what it starts from failed", flush=True)
            free = slots.number - len(running)
            compiling = {one.row.name for one in running if is_compiling(one, args)}
            left_s = args.deadline_s - time.monotonic()
            for job in [
                job
                for job in first_of_rows(waiting, compiling)
                if is_ready(job, args) and expected_s(job, args, seen_s) < left_s
            ][:free]:
                waiting.remove(job)
                start(job, args, slots)
                running.append(job)
            if not running and not any(
                is_ready(j, args) and expected_s(j, args, seen_s) < left_s for j in waiting
            ):
                break
            if left_s < (0.0 if args.resume_later else -20.0):
                print("-- past the deadline: stopping what still runs", flush=True)
                break
            time.sleep(0.5)
    finally:
        slots.stop(running)
        for job in running:
            print(f"-- {job.name}: stopped after {time.monotonic() - job.started_s:.0f} s", flush=True)
    for job in waiting:
        print(f"-- {job.name}: not started", flush=True)


def with_starts(rows: Sequence[str]) -> list[str]:
    """Names of rows, each behind those that it starts from."""
    names: list[str] = []
    for name in rows:
        if name not in ROWS:
            sys.exit(f"there is no row {name!r}: --list shows them")
        own = ROWS[name]
        chain = [*own.also, *([own.encoder] if own.encoder else []), name]
        while ROWS[name].start:
            name = ROWS[name].start
            chain.insert(0, name)
        names += [one for one in chain if one not in names]
    return names


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Wanted rows and what they start from, row by row, without those that are done or that this version cannot run."""
    from mast_ray.config.errors import ConfigError
    from mast_ray.verbs.main import config_of

    jobs = []
    for name in with_starts(args.rows):
        try:
            config_of(args.recipe, None, list(sets_of(ROWS[name], 0, args)))
        except ConfigError as error:
            print(f"-- {name}: left out, {str(error).splitlines()[0]}", flush=True)
            continue
        seeds = args.seeds[:1] if ROWS[name].verb in ("pretrain", "given") else args.seeds
        jobs += [Job(ROWS[name], seed) for seed in seeds if not is_done(Job(ROWS[name], seed), args)]
    return jobs


def sets_of(row: Row, seed: int, args: argparse.Namespace) -> tuple[str, ...]:
    """Knobs of a row: those all rows share, its own, and those of the command line."""
    epochs = args.epochs * TIMES_AS_LONG.get(row.name.rpartition("_")[2], 1)
    often = max(1.0, epochs / args.validations)
    pretrain_epochs = args.pretrain_epochs
    stage1_epochs = args.self_train_epochs
    shared = [
        f"seed={seed}", f"model.size={args.size}", "evaluate.bootstrap=10", "cluster.reader_threads=2",
        "cluster.checkpoint_every_steps=250",
        f"detector.epochs={epochs}", f"detector.warmup_epochs={0.05 * epochs:.2f}", f"detector.batch_size={args.batch_size}",
        f"detector.learning_rate={args.learning_rate}", "detector.ema_decay=0.998", "detector.unfrozen_blocks=12",
        f"detector.backbone_multiplier={0.3 if row.start else 1.0}", f"detector.validate_every_epochs={often:.3f}",
        f"pretrain.epochs={pretrain_epochs}", f"pretrain.warmup_epochs={0.05 * pretrain_epochs:.2f}",
        f"pretrain.batch_size={args.pretrain_batch_size}", "pretrain.learning_rate=4e-4",
        f"pretrain.validate_every_epochs={max(1.0, pretrain_epochs / args.validations):.3f}",
        f"self_train.rounds={args.rounds}",
    ]  # fmt: skip
    stage2_epochs = 2 * epochs if row.name.endswith("_two_stage") else max(1, epochs // 4)
    for stage, number, rate in (("stage1", stage1_epochs, 3e-4), ("stage2", stage2_epochs, 1e-4)):
        knobs = {
            "epochs": number, "warmup_epochs": 0.05 * number, "batch_size": args.batch_size, "learning_rate": rate,
            "ema_decay": 0.998, "backbone_multiplier": 0.3, "unfrozen_blocks": 12, "unfreeze_blocks": 0,
            "unfreeze_every_epochs": 0, "unfreeze_start_epoch": 0, "validate_every_epochs": max(1.0, number / args.validations),
        }  # fmt: skip
        shared += [f"self_train.{stage}.{name}={value}" for name, value in knobs.items()]
    return (*shared, *row.all_sets(), *args.sets)


def as_flags(sets: Sequence[str]) -> list[str]:
    return [part for one in sets for part in ("--set", one)]


def folder_of(job: Job, args: argparse.Namespace) -> Path:
    return args.work / "runs" / job.row.name / f"seed{job.seed}"


def model_of(job: Job, args: argparse.Namespace) -> str:
    """Where the weights of a finished run lie."""
    if job.row.verb == "given":
        from mast_ray.training.files.shipped import model_folder

        return model_folder(job.row.model, has_gpu=True)
    inside = "rounds/model" if job.row.verb == "self-train" else "model"
    return str(folder_of(job, args) / inside)


def result_of(job: Job, args: argparse.Namespace) -> Path:
    return args.work / "results" / f"{job.name}.json"


def is_done(job: Job, args: argparse.Namespace) -> bool:
    """A detector is done when it is scored; what starts from it needs its weights too."""
    if job.row.verb == "pretrain":
        return (folder_of(job, args) / "model" / "manifest.json").exists()
    return result_of(job, args).exists()


def start_of(job: Job, args: argparse.Namespace) -> Job | None:
    """The run whose weights a job starts from: a detector of its own seed, an encoder of the first (they take longest, and are shared)."""
    if not job.row.start:
        return None
    row = ROWS[job.row.start]
    return Job(row, args.seeds[0] if row.verb in ("pretrain", "given") else job.seed)


def encoder_of(job: Job, args: argparse.Namespace) -> Job | None:
    """The pretraining whose encoder first lessons begin with."""
    return Job(ROWS[job.row.encoder], args.seeds[0]) if job.row.encoder else None


def others_of(job: Job, args: argparse.Namespace) -> list[Job]:
    """The runs whose detectors teach beside the one that a job starts from."""
    seeds = args.seeds if job.row.is_committee else []
    own = [Job(ROWS[job.row.start], seed) for seed in seeds if seed != job.seed]
    further = [(ROWS[name], seed) for name in job.row.also for seed in seeds]
    return own + [Job(row, seed) for row, seed in further if row.verb != "given" or seed == args.seeds[0]]


def is_ready(job: Job, args: argparse.Namespace) -> bool:
    before, encoder = start_of(job, args), encoder_of(job, args)
    return before is None or all(
        is_done(one, args) for one in (before, encoder, *others_of(job, args)) if one
    )


def is_compiling(job: Job, args: argparse.Namespace) -> bool:
    """Whether a training has not shown a step yet: the next one of its row finds in the cache what it compiles."""
    log = folder_of(job, args) / "log.txt"
    return (
        job.row.verb == "train"
        and not job.row.start
        and log.exists()
        and not re.search(r"step \d+/", log.read_text(errors="replace"))
    )


def first_of_rows(jobs: list[Job], compiling: set[str]) -> list[Job]:
    """Jobs in their order without those of a row that is being compiled, and one of a row at a time."""
    chosen: dict[str, Job] = {}
    for job in jobs:
        if job.row.name not in compiling:
            chosen.setdefault(job.row.name, job)
    return list(chosen.values())


def known_seconds(args: argparse.Namespace) -> dict[str, float]:
    """Row -> seconds of its slowest finished run."""
    path = args.work / "seconds.json"
    return json.loads(path.read_text()) if path.exists() else {}


def expected_s(job: Job, args: argparse.Namespace, seen_s: dict[str, float]) -> float:
    """Seconds of a run like this: of the same row, else of the slowest with the same verb, else a guess."""
    if args.resume_later:
        return 20.0
    same_verb = [
        s for name, s in seen_s.items() if name in ROWS and ROWS[name].verb == job.row.verb and name != "fcos"
    ]
    return 1.1 * seen_s.get(job.row.name, max(same_verb, default=args.guess))


def start(job: Job, args: argparse.Namespace, slots: Slots) -> None:
    folder = folder_of(job, args)
    folder.mkdir(parents=True, exist_ok=True)
    order = folder / "job.json"
    order.write_text(json.dumps({
        "row": job.row.name, "seed": job.seed, "verb": job.row.verb, "commands": commands_of(job, args),
        "model": str(folder / "rounds") if job.row.verb == "self-train" else model_of(job, args),
        "prepared": str(args.work / "prepared"), "result": str(result_of(job, args)), "sets": sets_of(job.row, job.seed, args),
        "recipe": args.recipe, "teachers": [model_of(one, args) for one in (start_of(job, args), *others_of(job, args)) if one],
    }, indent=1))  # fmt: skip
    job.started_s = time.monotonic()
    slots.start(job, [sys.executable, str(Path(__file__).resolve()), "--job", str(order)], folder / "log.txt")
    print(f"-- {job.name}: started", flush=True)


def commands_of(job: Job, args: argparse.Namespace) -> list[list[str]]:
    """The `mast` commands of a job."""
    return [] if job.row.verb == "given" else [command_of(job, args)]


def command_of(job: Job, args: argparse.Namespace) -> list[str]:
    """What a job trains by."""
    folder, prepared = folder_of(job, args), str(args.work / "prepared")
    trained_on = [str(args.work / one) for one in job.row.trains_on]
    flags = ["--recipe", args.recipe, "--runner", "here", *as_flags(sets_of(job.row, job.seed, args))]
    before = start_of(job, args)
    start = str(Path(model_of(before, args), job.row.inside)) if before else ""
    match job.row.verb:
        case "pretrain":
            return ["pretrain", prepared, "--out", str(folder / "model"), *flags]
        case "train":
            given = "--encoder" if before and before.row.verb == "pretrain" else "--detector"
            begin = [given, start] if start else []
            if encoder := encoder_of(job, args):
                begin += ["--encoder", model_of(encoder, args)]
            return ["train", *trained_on, "--out", str(folder / "model"), *begin, *flags]
        case _:
            truth = ["--truth", str(args.work / "archive" / "truth.csv")]
            others = [model_of(one, args) for one in others_of(job, args)]
            also = ["--also", *others] if others else []
            return [
                "self-train",
                prepared,
                "--detector",
                start,
                "--out",
                str(folder / "rounds"),
                *truth,
                *also,
                *flags,
            ]


def finish(job: Job, args: argparse.Namespace, failed: set[str], seen_s: dict[str, float]) -> None:
    spent_s = time.monotonic() - job.started_s
    if is_done(job, args):
        seen_s[job.row.name] = max(seen_s.get(job.row.name, 0.0), spent_s)
        (args.work / "seconds.json").write_text(json.dumps(seen_s, indent=1))
        print(f"-- {job.name}: done in {spent_s:.0f} s", flush=True)
        return
    failed.add(job.name)
    tail = (folder_of(job, args) / "log.txt").read_text(errors="replace").splitlines()[-12:]
    print(f"-- {job.name}: FAILED after {spent_s:.0f} s\n   " + "\n   ".join(tail), flush=True)


# Inside a job's own process


def run_job(order_path: Path) -> None:
    """Train (or pretrain, or self-train) and score, in one process: imports and CUDA's start are paid once."""
    from mast_ray.verbs.main import main as mast

    order = json.loads(order_path.read_text())
    started_s = time.monotonic()
    for command in order["commands"]:
        print("$ mast", *command, flush=True)
        code = mast(command)
        if code != 0:
            sys.exit(code)
    trained_s = time.monotonic() - started_s
    if order["verb"] != "pretrain":
        score(order, trained_s)
    for checkpoint in Path(order["model"]).rglob("checkpoints/**/*"):
        if checkpoint.is_file():
            checkpoint.unlink()  # a finished run needs its weights alone, and the disk is shared
    print(f"done in {time.monotonic() - started_s:.1f} s", flush=True)


def score(order: dict, trained_s: float) -> None:
    """Write the counts of a run's model; of self-training also those of its last student (row NAME_last), delivered or not."""
    folder = Path(order["model"])
    if order["verb"] == "given":
        score_model(order, order["model"], order["row"], {})
        return
    if order["verb"] != "self-train":
        kept = ("steps", "samples", "train_chunks", "best_step", "best", "chunks_per_s", "wait_share")
        facts: dict[str, Any] = {"samples": 0}  # of what has no network
        if (folder / "summary.json").exists():
            summary = json.loads((folder / "summary.json").read_text())
            facts = {name: summary[name] for name in kept}
        lessons = [json.loads(path.read_text()) for path in folder.glob("first_lessons/*/*/summary.json")]
        facts["samples"] += sum(stage.get("samples", 0) for stage in lessons)
        score_model(order, str(folder), order["row"], facts | {"train_s": round(trained_s, 1)})
        return
    stages = [json.loads(path.read_text()) for path in sorted(folder.glob("round*/*/summary.json"))]
    facts = {
        "rounds": json.loads((folder / "rounds.json").read_text()),
        "samples": sum(stage.get("samples", 0) for stage in stages),
        "chunks_per_s": max((stage.get("chunks_per_s") or 0.0 for stage in stages), default=None),
        "train_s": round(trained_s, 1),
    }
    student = last_student(folder)
    if student is not None:
        score_model(order, str(student), f"{order['row']}_last", facts)
    score_model(order, str(folder / "model"), order["row"], facts)
    if len(order["teachers"]) > 1:
        score_teachers(order)


def score_teachers(order: dict) -> None:
    """Counts of the committee itself (row NAME_teachers): what a student of it can hope for."""
    from next_site_scores import SPLITS, counts_of, write_run

    from mast_ray.evaluation.metrics import best_threshold
    from mast_ray.evaluation.scoring import score_chunks
    from mast_ray.inference.tuned_detector import is_doubted
    from mast_ray.stages.runner import HERE
    from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
    from mast_ray.stages.self_train.teacher_thresholds import HeldOut
    from mast_ray.storage.storage import open_storage
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.training.data.archive_inputs import as_trained
    from mast_ray.training.files.model_files import read_card
    from mast_ray.verbs.main import config_of

    first, *also = order["teachers"]
    config = as_trained(config_of(order["recipe"], None, order["sets"]), read_card(first))
    splits = (*SPLITS, "ood_dev")
    with tempfile.TemporaryDirectory() as out:
        run_pseudo_label(config, first, order["prepared"], out, splits=splits, also=also, runner=HERE)
        stored, doubts = open_storage(out, config.storage), is_doubted(read_card(first), config.evaluate)
        held = HeldOut(config, open_prepared(order["prepared"]), stored, doubts)
        scored = {name: score_chunks(held.archive, *held.detections(name), config) for name in splits}
    threshold = best_threshold(scored["ood_dev"].matches)
    about = {name: order[name] for name in ("seed", "verb", "sets", "recipe")}
    about |= {"row": f"{order['row']}_teachers", "threshold": threshold}
    stem = Path(order["result"]).with_name(f"{about['row']}-seed{order['seed']}")
    write_run(stem, {name: counts_of(one, threshold) for name, one in scored.items()}, about)


def last_student(folder: Path) -> Path | None:
    """The model that the last round of a self-training ended with."""
    rounds = sorted(folder.glob("round[0-9]*"), key=lambda path: int(path.name.removeprefix("round")))
    ends = ("averaged", "stage2", "mixed", "union", "control", "ceiling", "stage1")
    found = [one / end for one in reversed(rounds) for end in ends if (one / end / "card.json").exists()]
    return found[0] if found else None


def score_model(order: dict, model: str, row: str, facts: dict) -> None:
    """Counts of all test splits in one pass over their chunks, at the threshold that was chosen with the weights."""
    from next_site_scores import SPLITS, counts_of, write_run

    from mast_ray.stages.runner import HERE
    from mast_ray.stages.score.evaluate import Wanted, evaluate_model
    from mast_ray.verbs.main import config_of

    config = config_of(order["recipe"], None, order["sets"])
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        wanted = Wanted((*SPLITS, "ood_dev"))
        scores = evaluate_model(config, model, order["prepared"], out, wanted, runner=HERE)
    threshold = scores.threshold.value
    counts = {name: counts_of(one, threshold) for name, one in scores.splits.items()}
    about = {name: order[name] for name in ("seed", "verb", "sets", "recipe")}
    about |= {"row": row, "threshold": threshold, "score_s": round(time.monotonic() - started_s, 1)}
    result = Path(order["result"]).with_name(f"{row}-seed{order['seed']}")
    write_run(result, counts, about | facts)


def print_table(args: argparse.Namespace) -> None:
    from next_site_scores import read_runs, share_of_gap, tables

    runs = read_runs(args.work / "results")
    text = tables(runs, list(ROWS), args.rivals)
    text += share_of_gap(runs, "field", "self_trained_control", "self_trained", "self_trained_ceiling")
    text += share_of_gap(runs, "field", "field_long", "field_lessons", "lessons_ceiling")
    text += share_of_gap(runs, "few", "few_long", "few_lessons", "few_ceiling")
    (args.work / "table.md").write_text(text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
