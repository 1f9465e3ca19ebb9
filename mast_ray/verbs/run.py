"""`mast run`: the whole pipeline on a user's own recordings and boxes, with
budgets that fit data and hardware.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from contextlib import suppress
from typing import NamedTuple

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config, StorageConfig
from mast_ray.evaluation.figure_tables import difference_text
from mast_ray.evaluation.score_sheet import METRICS
from mast_ray.self_training.round_records import ROUNDS
from mast_ray.stages.runner import Runner
from mast_ray.storage.spread import Resources
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.budgets import FIRST_LESSONS, Budget, Start, fitted_budget
from mast_ray.tables.preparing.inventory import refuse_no_folder
from mast_ray.training.files.shipped import SCRATCH, SHIPPED, model_folder
from mast_ray.verbs.advise_upsampling import BOX_COLUMNS, extents_of, size_lines
from mast_ray.verbs.annotation_arguments import add_annotation_arguments, annotation_argv
from mast_ray.verbs.expected import with_expected
from mast_ray.verbs.gpu import has_gpu
from mast_ray.verbs.pipeline import Costs, Step, method_table, run_steps

HELP = """From a folder of recordings and a few expert boxes to a detector, its figures, boxes for every recording and a report.

  mast run --audio recordings/ --annotations tables/ --out run
  mast run --audio recordings/ --annotations boxes.csv --table sites.csv --out run --minutes 60 --set split.ood_sites=[S7]

It begins with the detector that comes with the package and trains it on your boxes; with --start scratch (or a recipe of your own) it
pretrains on your recordings instead. What stands out, put together as your boxes say, is tried beside it: a minute, no network; the better of both
makes the boxes. Without a GPU (on a cluster: of the cluster) the recipe is `tiny` and the training takes at most --minutes: your boxes come first,
self-training gets what is left. With one it is `field`. Interrupted and started again it goes on where it was."""
USES_CONFIG = USES_RUNNER = True
NETWORK, PIECES = "self_trained/model", "pieces"  # folders of a run
PIECES_S = 60.0  # to teach them, on two cores
SPLITS = {
    "val": "validation",
    "test": "in-domain test",
    "temporal_ood": "unseen dates",
    "site_ood": "unseen sites",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--audio", required=True, help="folder or s3:// prefix of recordings")
    add_annotation_arguments(parser, required=True)
    parser.add_argument(
        "--table", default="", help="CSV of recordings or sites: file, site, start_time, timezone, ..."
    )
    parser.add_argument(
        "--group", default="", metavar="COLUMN", help="column of --table whose equal values no split may part"
    )
    parser.add_argument("--out", required=True, help="folder or s3:// prefix of the run")
    parser.add_argument(
        "--start",
        default="",
        help="detector to begin with: shipped (default), a model folder, scratch: pretrain on these recordings, or shipped:energy: "
        "learn what stands out in them first",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=None,
        help="all training and pseudo-labels together are planned to take no longer (default: 30 on CPU, no limit on GPU)",
    )
    parser.add_argument(
        "--price",
        type=float,
        default=0.0,
        metavar="P",
        help="what a GPU costs per hour, in your money: the table of steps adds it up",
    )


def run(args: argparse.Namespace) -> int:
    from mast_ray.training.data.archive_inputs import refuse_other_shape
    from mast_ray.training.files.model_files import read_card
    from mast_ray.verbs.main import config_of, run_verb

    gpu = has_gpu(args)
    recipe = args.recipe or (None if args.config_file else ("field" if gpu else "tiny"))
    fixed = gpu or args.config_file or has_one_process(args)
    sets = [*args.sets, *(() if fixed else workers_for_cores(args.sets, os.cpu_count() or 1, recipe))]
    config = config_of(recipe, args.config_file, sets)
    knobs = knobs_of(recipe, args.config_file, sets)
    # a recipe or a file of settings says what to train: only without one does the shipped detector stand in
    args.start = args.start or (SCRATCH if args.recipe or args.config_file else SHIPPED)
    if args.price < 0:
        raise ConfigError(f"--price {args.price:g} must be 0 or more")
    if args.price and not gpu:
        print("--price is left aside: there is no GPU to pay for", flush=True)
    if args.minutes is not None and not args.minutes >= 0:
        raise ConfigError(f"--minutes {args.minutes:g} must be 0 (no limit) or more")
    out = open_storage(args.out, config.storage)
    if next(iter(out.list("listen_first")), None) is not None:
        raise ConfigError(
            f"--out {args.out} holds what `mast listen` found:\nchoose another folder for the run"
        )
    refuse_no_folder(
        open_storage(args.audio, config.storage)
    )  # before Ray is started and a large archive prepared
    if args.start != SCRATCH:
        card = read_card(model_folder(args.start, gpu), config.storage)
        refuse_other_shape(config, card, (item.partition("=")[0] for item in args.sets), args.start)
    if args.runner.name == "ray" and "RAY_ADDRESS" not in os.environ:
        print("starting Ray on this machine (small archives can do without: --runner here)", flush=True)
    with args.runner.session():
        code = run_steps([_prepare(args, out, knobs)], run_verb, out)
        if code not in (0, 4):
            return code
        minutes = args.minutes if args.minutes is not None else (0.0 if gpu else 30.0)
        wants_rounds = bool(args.config_file) or any(map(_is_of_rounds, args.sets))
        budget = _announce(config, out, gpu, minutes, args.start, wants_rounds)
        fitted = (part for key, value in budget.overrides.items() for part in ("--set", f"{key}={value}"))
        knobs = (*knobs, *fitted)
        sets += [f"{key}={value}" for key, value in budget.overrides.items()]
        config = config_of(recipe, args.config_file, sets)
        costs = Costs(_paid_gpus(args.runner.resources(), config) if gpu else 0, args.price)
        steps = _training_steps(args, out, knobs, _teaches_pieces(config, out), config.self_train.rounds)
        training = with_expected(steps, budget, config.self_train.rounds, out if minutes > 0 else None)
        results = _result_steps(args, out, knobs, out.at(NETWORK).url)
        part = run_steps([*training, *results], run_verb, out, costs=costs, part=slice(len(training)))
        if part not in (0, 4):
            return part
        code = max(code, part)
        chosen = delivered(config, out, args.runner)
        print(f"\n{chosen.why}")
        results = _result_steps(args, out, knobs, chosen.model)
        steps = [*training, *results]
        part = run_steps(steps, run_verb, out, costs=costs, part=slice(len(training), None))
        if part not in (0, 4):
            return part
    _last_screen(out, chosen)
    return max(code, part)


def _paid_gpus(offered: Resources, config: Config) -> int:
    """A cluster that grows on demand shows few of its GPUs at first: as many as workers will ask for count."""
    asked = 0 if offered.is_one_process else config.cluster.num_workers
    return max(int(offered.num_gpus), asked)


def _prepare(args: argparse.Namespace, out: Storage, knobs: tuple[str, ...]) -> Step:
    table = ("--table", args.table) if args.table else ()
    group = ("--group", args.group) if args.group else ()
    argv = (
        args.audio,
        *annotation_argv(args),
        *table,
        *group,
        "--out",
        out.at("prepared").url,
        "--runner",
        args.runner.name,
        *knobs,
    )
    return Step("prepare: what is there, log-mel tables, labels, splits", "prepare", argv)


def _training_steps(
    args: argparse.Namespace, out: Storage, knobs: tuple[str, ...], with_pieces: bool, rounds: int
) -> list[Step]:
    self_training = (
        "self-train on the unlabelled recordings"
        if rounds
        else "no round of self-training: as it was trained"
    )
    prepared, runner = out.at("prepared").url, ("--runner", args.runner.name)
    pretrain = Step("pretrain on all that may be learned from", "pretrain",
                    (prepared, "--out", out.at("encoder").url, *runner, *knobs))  # fmt: skip
    known = ("--known", out.at("self_trained").url)  # its rounds were scored: nothing is detected again
    from_scratch = args.start == SCRATCH
    begin = ("--encoder", out.at("encoder").url) if from_scratch else ("--start", args.start)
    pieces = [
        Step("put together what stands out, as your boxes say: no network", "train",
             (prepared, "--out", out.at(PIECES).url, *runner, *knobs, "--set", f"model.name={PIECES}"), PIECES_S),
        Step("evaluate the pieces", "evaluate",
             (out.at(PIECES).url, prepared, "--out", out.at(f"scores/{PIECES}").url, *runner, *knobs)),
    ]  # fmt: skip
    return [
        *([pretrain] if from_scratch else []),
        Step("train a detector on your boxes", "train",
             (prepared, *begin, "--out", out.at("detector").url, *runner, *knobs)),
        Step(self_training, "self-train",
             (prepared, "--detector", out.at("detector").url, "--out", out.at("self_trained").url, *runner, *knobs)),
        Step("evaluate the supervised detector", "evaluate",
             (out.at("detector").url, prepared, "--out", out.at("scores/detector").url, *known, *runner, *knobs)),
        Step("evaluate the self-trained detector" if rounds else "the same figures for the report", "evaluate",
             (out.at(NETWORK).url, prepared, "--out", out.at("scores/self_trained").url, *known, *runner, *knobs)),
        *(pieces if with_pieces else []),
    ]  # fmt: skip


def _result_steps(args: argparse.Namespace, out: Storage, knobs: tuple[str, ...], model: str) -> list[Step]:
    table = ("--table", args.table) if args.table else ()
    bucket = bucket_knobs(args.config.storage)
    return [
        Step("detect: boxes for every recording", "detect",
             (model, args.audio, *table, "--out", out.at("detections").url, "--runner", args.runner.name, *knobs)),
        Step("export to Raven", "export",
             (out.at("detections").url, "--to", "raven", "--out", out.at("raven").url, *bucket)),
        Step("report", "report", (out.url, "--audio", args.audio, "--out", f"{out.url}/report.html", *bucket)),
    ]  # fmt: skip


def _teaches_pieces(config: Config, out: Storage) -> bool:
    """Whether a detector without a network is tried beside the trained one."""
    from mast_ray.stages.train.pieces import has_enough_boxes

    return config.model.learns and has_enough_boxes(config, out.at("prepared").url)


class Delivered(NamedTuple):
    """Whose boxes a run gives."""

    model: str  # folder
    why: str


def delivered(config: Config, out: Storage, runner: Runner) -> Delivered:
    """The network, or pieces of what stands out where these are better beyond noise on the split that may choose."""
    from mast_ray.evaluation.split_truth import selection_split
    from mast_ray.stages.score.evaluate import evaluate_model
    from mast_ray.tables.prepared import open_prepared

    prepared, network, pieces = (out.at(name).url for name in ("prepared", NETWORK, PIECES))
    if out.at(f"scores/{PIECES}").stat(METRICS) is None:
        return Delivered(network, "the trained network makes the boxes")
    found, other = (
        evaluate_model(config, model, prepared, out.at(f"scores/{name}").url, runner=runner)
        for model, name in ((pieces, PIECES), (network, "self_trained"))
    )
    split = selection_split(open_prepared(prepared, config.storage))
    if split not in found.splits:
        return Delivered(network, "the trained network makes the boxes: no split is held out to choose on")
    gain = found.gains_over(other, config)[split]["f1"]
    said = f"pieces without a network against it: F1 {difference_text(gain)} on {split}"
    if gain.low > 0:
        return Delivered(pieces, f"pieces make the boxes, not the trained network ({said})")
    return Delivered(network, f"the trained network makes the boxes ({said})")


def _is_of_rounds(item: str) -> bool:
    """Whether somebody who sets this knob wants rounds of self-training (stage 2 is also how a detector is adapted to boxes)."""
    no_round = ("self_train.stage2.", "self_train.rounds=0")
    return item.startswith("self_train.") and not item.startswith(no_round)


def _announce(
    config: Config, out: Storage, has_gpu: bool, minutes: float, start: str, wants_rounds: bool = False
) -> Budget:
    """Say what was found and how long it will take; its settings make it fit."""
    from mast_ray.evaluation.split_truth import scored_splits
    from mast_ray.stages.self_train.first_lessons import is_untrained
    from mast_ray.stages.train.pace import cpu_rates, pace_of_run
    from mast_ray.tables.assumed_rates import gpu_rates
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.tables.reading.chunk_sets import chunks_of_split
    from mast_ray.training.data.labels import expert_chunks

    archive = open_prepared(out.at("prepared").url, config.storage)
    if not len(archive.labels):
        heard = sum(archive.recordings.column("is_annotated").to_pylist())
        raise DataError(
            f"there is no box to learn from: {heard:,} recordings were gone through, and no call was marked in them\n"
            "add tables with boxes around calls; `mast listen` looks for sounds without any"
        )
    if not scored_splits(archive):
        raise DataError(
            "no annotated recording is held out, so that no detector could be scored:\n"
            "annotate three recordings or more, or leave some to split.val and split.test"
        )
    # what nobody has gone through is no lesson by experts, and neither is what a label budget leaves out
    pool_chunks, train_chunks = chunks_of_split(archive, "pool"), expert_chunks(archive, config)
    pool, labelled = len(pool_chunks), len(train_chunks)
    is_mixed = config.self_train.curriculum in ("mixed", "mixed_then_expert", "control", "ceiling")
    if is_mixed and pool <= labelled and set(pool_chunks.ids(archive)) <= set(train_chunks.ids(archive)):
        raise DataError(
            f"every recording that may be learned from is annotated throughout: self_train.curriculum={config.self_train.curriculum} "
            "has nothing to mix in\nadd recordings without annotations, or use --set self_train.curriculum=stage2_only"
        )
    untrained = start != SCRATCH and is_untrained(model_folder(start, has_gpu), config)
    # as large as what will be trained
    like = model_folder("shipped:tiny" if untrained or start == SCRATCH else start, has_gpu)
    rates = gpu_rates(config) if has_gpu else cpu_rates(pace_of_run(config, like, out))
    source = "rates measured elsewhere" if has_gpu else "a step measured on this machine"
    begun: Start = "scratch" if start == SCRATCH else "lessons" if untrained else "detector"
    budget = fitted_budget(config, pool, labelled, rates, minutes, begun, wants_rounds)
    print(
        f"\n{pool} chunks to learn from, {labelled} labelled ones to train on, {len(archive.labels)} boxes in all"
    )
    extents = extents_of(*(archive.labels.column(name).to_pylist() for name in BOX_COLUMNS))
    if len(extents):
        print("\n".join(f"  {line}" for line in size_lines(extents)))
    for name, taken in budget.minutes.items():
        section = "self_train.stage1" if name == FIRST_LESSONS else name
        epochs, steps = (budget.overrides.get(f"{section}.{knob}") for knob in ("epochs", "max_steps"))
        part = budget.overrides.get("self_train.max_chunks") if section == "self_train.stage1" else None
        cut = (
            f"{steps} steps" if steps else f"{part} chunks" if part else f"{epochs} epochs" if epochs else ""
        )
        print(f"  {name:<20} about {taken:6.1f} min" + (f"  (cut to {cut} to fit)" if cut else ""))
    print(f"  {'learning in all':<20} about {budget.total_minutes:6.1f} min, estimated from {source}")
    if budget.overrides.get("self_train.rounds") == 0:
        print(
            f"  no round of self-training: its share of --minutes {minutes:g} goes to your boxes, which teach more in the same time "
            "(more minutes have room for both; --set self_train.rounds=1: in any case)"
        )
    if minutes > 0 and budget.total_minutes > 1.1 * minutes:
        print(
            f"  that is more than --minutes {minutes:g}: the least that teaches anything takes as long here"
        )
    return budget


def _last_screen(out: Storage, chosen: Delivered) -> None:
    rounds = json.loads(out.at("self_trained").read_bytes(ROUNDS))
    scores = {"supervised": "detector", "self-trained": "self_trained", "pieces, no network": PIECES}
    if len(rounds["rounds"]) == 1:  # that of the detector it would have begun with
        del scores["self-trained"]
    print("\n" + method_table({name: out.at(f"scores/{folder}") for name, folder in scores.items()}, SPLITS))
    print(f"\nself-training: {rounds['final']['why']}\n{chosen.why}")
    print("\n95 % intervals over recordings; where they overlap, a difference may be noise.\n\nwhat next")
    print(f"  look and listen       {out.url}/report.html")
    print(f"  open in Raven         {out.url}/raven")
    model, prepared, boxes = (
        shlex.quote(p) for p in (chosen.model, f"{out.url}/prepared", f"{out.url}/detections")
    )
    print(f"  another archive       mast detect {model} FOLDER --out detections")
    print(f"  which chunks to label mast label-budget plan {prepared} --detections {boxes} --out next")
    print("  on a cluster          docs/cluster.md")


def knobs_of(recipe: str | None, config_file: str | None, sets: list[str]) -> tuple[str, ...]:
    """The words that hand a verb's recipe, file and settings on to another verb."""
    parts: list[str] = ["--recipe", recipe] if recipe else []
    parts += ["--config", config_file] if config_file else []
    return (*parts, *(part for item in sets for part in ("--set", item)))


def bucket_knobs(storage: StorageConfig) -> tuple[str, ...]:
    """`--set` for a verb that reads what other settings have written."""
    named = {"storage.endpoint_url": storage.endpoint_url, "storage.region": storage.region}
    return tuple(part for key, value in named.items() if value for part in ("--set", f"{key}={value}"))


def has_one_process(args: argparse.Namespace) -> bool:
    """Whether training stays in this process, or goes to a cluster, which has other cores."""
    return args.runner.name == "here" or "RAY_ADDRESS" in os.environ


def workers_for_cores(sets: list[str], num_cores: int, recipe: str | None = "tiny") -> list[str]:
    """A training process for every core without a GPU, up to the four chunks of a batch, as far as all batches that a user
    has said can be shared by them; nothing where a user has said how many.
    """
    from mast_ray.verbs.main import config_of

    if any(item.startswith("cluster.num_workers=") for item in sets):
        return []
    for count in (4, 2, 1):
        own = [f"cluster.num_workers={count}"]
        with suppress(ConfigError):
            if count <= num_cores and config_of(recipe, None, [*sets, *own]):
                return own
    return []  # another setting is wrong: who reads them says which
