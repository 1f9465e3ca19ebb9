"""`mast train PREPARED --out DIR`: train a detector on expert boxes, from the one that comes with the package."""

from __future__ import annotations

import argparse
import os
from typing import Literal

Section = Literal["detector", "self_train.stage1", "self_train.stage2"]
USES_CONFIG = USES_RUNNER = True
HELP = """Train a detector on the labelled chunks of a prepared archive.

It starts from the detector that comes with the package, on CPUs with the knobs of recipe `tiny` as from every other one: fifty boxes are enough to begin with. Whoever
names a recipe, a file of settings, settings of the model, --encoder or --detector gets what these say instead; --start overrules all.
PREPARED, --encoder and --out are folders or s3:// prefixes. --out becomes a model folder with the averaged weights of the best validation
and its tuned score threshold. `--set model.name=fcos` trains a baseline on the same data, augmentation and budget. Interrupted, the same
command goes on where it was; finished, it has nothing to do.

`mast train NEW --start MODEL --out DIR` adapts a detector to another archive: NEW is read with the statistics of MODEL, nothing is prepared again,
and its validation figures before and after are printed (with --remember OLD also those on the archive it came from).

`mast train PREPARED --start shipped:energy --out DIR` trains from nothing (or from --encoder), in two steps: first on the boxes of whatever stands out in the pool, then on yours. Where
few boxes are labelled and no shipped detector suits, it finds more at the next site than your boxes alone teach. `--set model.name=pieces` is the
detector that gives these first lessons: pieces of what stands out, put together as your boxes say; a minute on a laptop, and no network.

Several archives are one: `mast train A B s3://bucket/C --out DIR` takes the pools, labels and splits of all, with one statistics. DIR/archives then stands for
them in every other verb (mast evaluate MODEL DIR/archives)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prepared",
        nargs="+",
        metavar="PREPARED",
        help="folder or s3:// prefix written by `mast prepare`; several are taken together",
    )
    parser.add_argument("--out", required=True, help="folder or s3:// prefix to write")
    parser.add_argument(
        "--encoder",
        default="",
        help="folder written by `mast pretrain`, or AudioMAE weights (.pth as published, or .safetensors)",
    )
    parser.add_argument("--detector", default="", help="folder written by `mast train` to start from instead")
    parser.add_argument(
        "--start",
        default="",
        help="shipped (the default where nothing else is said; also shipped:tiny, shipped:compact), scratch, or a model folder: "
        "a detector of any archive is adapted gently, with its own statistics; prints its figures before and after; "
        "shipped:energy: a new detector learns what stands out in the pool first",
    )
    parser.add_argument(
        "--remember",
        default="",
        help="with --start: the archive it was trained on, to print what is lost there",
    )
    parser.add_argument(
        "--pseudo-labels",
        default="",
        help="folder of pseudo-labels to train on: roundN/pseudo of `mast self-train`",
    )
    parser.add_argument(
        "--labels",
        choices=("expert", "pseudo", "both"),
        default="",
        help="whose boxes; pseudo when such a folder is given",
    )
    parser.add_argument("--section", choices=("detector", "self_train.stage1", "self_train.stage2"), default="",
                        help="config section whose knobs are used (detector; with --start: self_train.stage2)")  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and every derived quantity only"
    )


def chosen_start(args: argparse.Namespace) -> tuple[str, str]:
    """What training starts from when nobody says, and a line that says so: the shipped detector, unless something on the
    command line says what to train.
    """
    from mast_ray.training.files.shipped import SCRATCH, SHIPPED

    said = [f"--{name}" for name in ("encoder", "detector", "recipe") if getattr(args, name)]
    said += ["--config"] if args.config_file else []
    said += ["--pseudo-labels"] if args.pseudo_labels else []
    said += [f"--set {item.partition('=')[0]}" for item in args.sets if item.startswith("model.")]
    if said:
        return (
            SCRATCH,
            f"start: as {said[0]} says (--start shipped adapts the detector that comes with the package)",
        )
    return (
        SHIPPED,
        "start: the detector that comes with the package (--start scratch begins with fresh weights)",
    )


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.config.errors import ConfigError
    from mast_ray.stages.self_train.first_lessons import is_untrained, learn_first_lessons, lessons_plan
    from mast_ray.stages.train.adapting import adaptation_text, adaptations
    from mast_ray.stages.train.plan import plan_text
    from mast_ray.stages.train.summary import result_text
    from mast_ray.stages.train.train import run_train_detector
    from mast_ray.stages.train.work import DetectorTask
    from mast_ray.tables.joining import archive_to_plan, one_archive
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.training.data.archive_inputs import refuse_unfit_starts, with_model_of
    from mast_ray.training.data.labels import LabelSource
    from mast_ray.training.files.model_files import read_card
    from mast_ray.training.files.shipped import SCRATCH
    from mast_ray.verbs.gpu import folder_of_model, has_gpu
    from mast_ray.verbs.idle_options import refuse_idle
    from mast_ray.verbs.main import config_of
    from mast_ray.verbs.run import has_one_process, workers_for_cores

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not args.config.model.learns:
        return _teach_pieces(args)
    name: Literal["expert", "pseudo", "both"] = args.labels or ("pseudo" if args.pseudo_labels else "expert")
    if name != "expert" and not args.pseudo_labels:
        raise ConfigError(f"--labels {name} needs --pseudo-labels FOLDER")
    if name == "expert":
        refuse_idle(args, ("pseudo_labels",), "--labels expert trains on the experts' boxes alone")
    labels = LabelSource(name, args.pseudo_labels)
    if args.remember and args.start in ("", SCRATCH):
        raise ConfigError(
            "--remember tells what a detector forgets of the archive it came from: say which one, --start DETECTOR"
        )
    if args.start == SCRATCH:
        refuse_idle(args, ("detector",), "--start scratch begins with fresh weights, give one of them")
    if not args.start:
        args.start, why = chosen_start(args)
        print(why)
    if args.start != SCRATCH and not (args.recipe or args.config_file or has_gpu(args)):
        cores = [] if has_one_process(args) else workers_for_cores(args.sets, os.cpu_count() or 1)
        args.config = config_of("tiny", None, [*args.sets, *cores])
        print(f"recipe tiny, because there is no GPU; training processes: {args.config.cluster.num_workers}")
    args.start = "" if args.start == SCRATCH else folder_of_model(args.start, args)
    start = args.start or args.detector
    has_lessons = is_untrained(start, args.config)
    if args.start and (args.detector or (args.encoder and not has_lessons)):
        raise ConfigError("--start is a whole detector to adapt: leave out --detector and --encoder")
    if args.detector and not has_lessons:
        refuse_idle(args, ("encoder",), "--detector is a whole detector to start from, give one of them")
    is_gentle = args.start and not has_lessons
    section: Section = args.section or ("self_train.stage2" if is_gentle else "detector")
    if section != "detector" and (aside := [item for item in args.sets if item.startswith("detector.")]):
        logging.warning(
            "%s is left aside: knobs of %s are used%s; set those, or add --section detector",
            ", ".join(aside),
            section,
            "" if args.section else ", as always where training goes on from a detector",
        )
    refuse_unfit_starts(args.config, args.encoder, start)
    if args.remember:  # a training later is too late to hear that it is not there
        open_prepared(args.remember, args.config.storage)
    if args.dry_run:
        config = args.config
        if start and not has_lessons:
            config = with_model_of(config, read_card(start, config.storage), start)
        with archive_to_plan(args.prepared, config) as archive:
            if has_lessons:
                print(f"{lessons_plan(config, archive, start, args.out)}\n\nthen")
                start = ""
            task = DetectorTask(config, archive, args.out, section, labels, init_detector=start)
            print(plan_text(task))
        return 0
    if has_lessons:
        archive = one_archive(args.prepared, args.out, "train", args.config)
        first = (args.config, archive, start, args.out)
        start = learn_first_lessons(*first, encoder=args.encoder, runner=args.runner)
    summary = run_train_detector(
        args.config,
        args.prepared,
        args.out,
        section=section,
        labels=labels,
        init_encoder="" if has_lessons else args.encoder,  # lessons began with it
        init_detector=start,
        runner=args.runner,
    )
    print(result_text(summary, args.out))
    if args.start:
        archive = one_archive(args.prepared, args.out, "train", args.config)
        found = adaptations(args.config, args.start, args.out, archive, args.remember, runner=args.runner)
        print(adaptation_text(found))
    return 0


def _teach_pieces(args: argparse.Namespace) -> int:
    """`--set model.name=pieces`: two small judges in place of a network."""
    from mast_ray.config.errors import ConfigError
    from mast_ray.stages.train.pieces import NAME, STAGE, lesson_text, run_teach_pieces
    from mast_ray.tables.joining import one_archive

    if args.config.model.name != NAME:
        raise ConfigError(
            f"model.name={args.config.model.name} has nothing to learn: use shipped:energy as it is\n"
            f"or `--set model.name={NAME}`, which puts what stands out together as your boxes say"
        )
    given = ("start", "encoder", "detector", "remember", "pseudo_labels", "labels", "section")
    if aside := [f"--{name.replace('_', '-')}" for name in given if getattr(args, name)]:
        raise ConfigError(
            f"model.name={NAME} learns from the experts' boxes alone: leave out {', '.join(aside)}"
        )
    if args.dry_run:
        print("pieces of what stands out are put together as the experts' boxes say: a minute, no network")
        return 0
    archive = one_archive(args.prepared, args.out, STAGE, args.config)
    lesson = run_teach_pieces(args.config, archive, args.out, runner=args.runner)
    print(f"{lesson_text(lesson)}\nmodel: {args.out}")
    return 0
