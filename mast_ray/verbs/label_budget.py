"""`mast label-budget PREPARED`: learning curves over labels; `mast label-budget plan
PREPARED`: what to annotate next.
"""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
OF_CURVES = ("budgets", "strategies", "seeds", "encoder", "match")
OF_PLAN = ("num", "strategy", "detections", "threshold", "model", "embeddings", "audio", "formats")
HELP = """How many labels are enough, and which to draw next.

mast label-budget PREPARED --out DIR --budgets 25,50,100
    trains a detector on N labelled chunks drawn by several strategies, and writes learning curves with 95 % intervals
mast label-budget plan PREPARED --out DIR --num 20 [--detections D] [--embeddings E] [--audio ROOT]
    chooses unlabelled chunks to annotate next and writes them as Raven, Audacity and AOEF task files, with clips to listen to"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "prepared",
        nargs="+",
        metavar="[plan] PREPARED",
        help="folder or s3:// prefix written by `mast prepare`",
    )
    add("--out", required=True, help="folder or s3:// prefix to write")
    curves = parser.add_argument_group("learning curves")
    curves.add_argument(
        "--budgets",
        default="25,50,100",
        metavar="LIST",
        help="numbers of labelled chunks (default 25,50,100)",
    )
    curves.add_argument(
        "--strategies",
        default="random,time_balanced,sequential",
        metavar="LIST",
        help="how they are drawn (default all three)",
    )
    curves.add_argument("--seeds", type=int, default=2, metavar="N", help="runs per cell (default 2)")
    curves.add_argument(
        "--encoder",
        default="",
        help="folder written by `mast pretrain` (default: pretrain here if the model needs it)",
    )
    curves.add_argument(
        "--match",
        choices=("samples", "epochs"),
        default="samples",
        help="train every cell equally long, or equally often over its chunks",
    )
    plan = parser.add_argument_group("plan")
    plan.add_argument("--num", type=int, default=20, metavar="N", help="chunks to choose (default 20)")
    plan.add_argument(
        "--strategy",
        choices=("mixed", "time_balanced", "uncertainty", "coverage"),
        default="mixed",
        help="mixed takes turns among those whose tables are given",
    )
    plan.add_argument(
        "--detections", default="", help="table of detections: chunks with doubtful ones come first"
    )
    plan.add_argument(
        "--threshold",
        type=float,
        default=None,
        metavar="Q",
        help="score of a doubtful detection (default: of --model, else 0.5)",
    )
    plan.add_argument(
        "--model", default="", help="model folder (or shipped:tiny) whose tuned threshold is used"
    )
    plan.add_argument(
        "--embeddings",
        default="",
        help="output of `mast embed --what chunks`: chunks unlike the annotated ones come first",
    )
    plan.add_argument(
        "--audio", default="", metavar="ROOT", help="root of the recordings: writes the clips to listen to"
    )
    plan.add_argument(
        "--formats", default="raven,audacity,aoef", metavar="LIST", help="task files to write (default all)"
    )


def run(args: argparse.Namespace) -> int:
    import logging
    from shlex import quote

    from mast_ray.config.errors import ConfigError
    from mast_ray.verbs.idle_options import refuse_idle

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    match args.prepared:
        case ["plan", prepared]:
            refuse_idle(args, OF_CURVES, "it is for learning curves, leave it out (or leave out `plan`)")
            return _plan(args, prepared)
        case [prepared]:
            refuse_idle(args, OF_PLAN, f"it is for a plan: mast label-budget plan {quote(prepared)}")
            return _curves(args, prepared)
    raise ConfigError(
        f"give one prepared archive, not {' '.join(args.prepared)}: mast label-budget [plan] PREPARED --out DIR"
    )


def _curves(args: argparse.Namespace, prepared: str) -> int:
    from mast_ray.config.errors import ConfigError
    from mast_ray.stages.studies.label_budget import BudgetStudy, run_label_budget

    try:
        budgets = tuple(int(text) for text in args.budgets.split(",") if text.strip())
    except ValueError:
        raise ConfigError(
            f"--budgets {args.budgets} must be whole numbers with commas, e.g. 25,50,100"
        ) from None
    if not budgets or args.seeds < 1:
        raise ConfigError("--budgets and --seeds must name at least one run, e.g. --budgets 25,50 --seeds 2")
    strategies = tuple(dict.fromkeys(name.strip() for name in args.strategies.split(",") if name.strip()))
    seeds = tuple(range(args.config.seed, args.config.seed + args.seeds))
    study = BudgetStudy(args.config, prepared, args.out, budgets, strategies, seeds, args.encoder, args.match)
    print(run_label_budget(study, args.runner))
    print(f"wrote label_budget.json, label_budget.csv, label_budget_splits.csv and gains.csv in {args.out}")
    return 0


def _plan(args: argparse.Namespace, prepared: str) -> int:
    from shlex import quote

    from mast_ray.config.errors import ConfigError
    from mast_ray.reporting.exports.annotation_plan import FORMATS, PlanInputs, plan_chunks, write_plan
    from mast_ray.storage.storage import open_storage
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.training.files.model_files import read_card
    from mast_ray.verbs.gpu import folder_of_model
    from mast_ray.verbs.idle_options import refuse_idle

    if not args.detections:
        refuse_idle(
            args, ("threshold", "model"), "it says which detections are doubtful, so add --detections TABLE"
        )
    if args.threshold is not None:
        refuse_idle(args, ("model",), "it is for its threshold, which --threshold gives")
    if args.strategy in ("time_balanced", "coverage"):
        refuse_idle(args, ("detections",), f"--strategy {args.strategy} does not look at it (mixed does)")
    formats = tuple(name.strip() for name in args.formats.split(",") if name.strip())
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigError(f"--formats {unknown[0]} is not known: choose from {', '.join(FORMATS)}")
    if args.num < 1:
        raise ConfigError(f"--num {args.num} must be at least 1")
    storage = args.config.storage
    threshold = args.threshold
    if threshold is None and args.model:
        threshold = read_card(folder_of_model(args.model, args), storage).score_threshold
    archive = open_prepared(prepared, storage)
    inputs = PlanInputs(archive, args.detections, args.embeddings, 0.5 if threshold is None else threshold)
    plan = plan_chunks(inputs, args.num, args.strategy, args.config.seed)
    audio = open_storage(args.audio, storage) if args.audio else None
    names = write_plan(plan, archive, open_storage(args.out, storage), audio, formats)
    for number, choice in enumerate(plan, 1):
        print(
            f"{number:>3}  {choice.chunk_id:<24} {choice.begin_s:8.2f} s  {choice.strategy}: {choice.reason}"
        )
    if len(plan) < args.num:
        print(f"note: only {len(plan)} of {args.num} chunks could be chosen without overlap")
    print(f"wrote {len(names)} files in {args.out}")
    tasks = quote(f"{args.out}/tasks/raven")
    print(f"who annotates the recordings themselves ({args.out}/tasks) says what was gone through (plan.csv, or the rows of it that were): the rest is no background\n"
          f"  mast prepare ARCHIVE --annotations {tasks} --listened {quote(f'{args.out}/plan.csv')} --out ...")  # fmt: skip
    if audio is not None:
        places = ("audio", "tasks/raven", "recordings.csv")
        clips, clip_tasks, table = (quote(f"{args.out}/clips/{place}") for place in places)
        print("annotate clips/audio in place of the selections 'annotate' (take them away where there is nothing), then bring them back:\n"
              f"  mast prepare {clips} --annotations {clip_tasks} --table {table} --out ...")  # fmt: skip
    return 0
