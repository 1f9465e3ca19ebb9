"""`mast tune PREPARED --detector DIR --out DIR`: search post-processing, then loss weights and thresholds; with
`--over loss` the loss weights of supervised training.
"""

from __future__ import annotations

import argparse

from mast_ray.config.errors import ConfigError

USES_CONFIG = USES_RUNNER = True
READS_MODELS = ("detector",)  # folders, or shipped ones by name
HELP = """Search the settings of self-training by F1 on validation (or `--set tune.objective_split=ood_dev`), never on a test split.

First the post-processing (q policy and value, suppression, validity) over detections that are stored once, thousands of settings in seconds.
Then loss weights, q, empty weight and learning-rate factors (`tune.parameters`) by short stage 1 + 2 trainings on Ray Tune with early stopping;
several trials run at once (always on Ray, whatever --runner says of inference). OUT/best.yaml is what `mast self-train --config` takes; OUT/trials.csv lists every trial. Killed, the same command
goes on: finished trials are not run again. The best post-processing is written into the detector's card, with one threshold, or with one for every
site where that is better on recordings that had no part in choosing them (of a shipped detector, or one that may not be written to: into that of a copy, OUT/model): `evaluate`, `detect` and `pseudo-label` apply it (unless --set
evaluate.post=none) and reach the F1 that is printed here.

`mast tune PREPARED --over loss [--encoder DIR | --detector DIR] --out DIR` searches supervised training instead: the loss weights (and factors)
of `tune.parameters` by short detector trainings on the expert labels, from an encoder, from a detector or from fresh weights. OUT/best.yaml is
then what `mast train --config` takes. Trials share a GPU by `tune.concurrent`; `tune.scheduler` stops poor ones (asha, median)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prepared", help="folder or s3:// prefix written by `mast prepare`")
    parser.add_argument("--detector", default="", help="folder written by `mast train`")
    parser.add_argument(
        "--over",
        choices=("self-training", "loss"),
        default="self-training",
        help="what is searched: settings of self-training from --detector, or loss weights of supervised training",
    )
    parser.add_argument(
        "--encoder", default="", help="--over loss: folder written by `mast pretrain` to start from"
    )
    parser.add_argument("--out", required=True, help="folder or s3:// prefix to write")
    parser.add_argument(
        "--self-trained",
        default="",
        metavar="DIR",
        help="folder of `mast self-train` that began with this detector: its stored detections are used, nothing is inferred again",
    )
    parser.add_argument(
        "--only", choices=("post", "training"), default="", help="one of the two searches (default: both)"
    )


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.stages.search.tune import best_rows, run_tune, run_tune_losses

    _refuse_misplaced(args)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.over == "loss":
        starts = {"encoder": args.encoder, "detector": args.detector}
        found = run_tune_losses(args.config, args.prepared, args.out, **starts)
    else:
        found = run_tune(
            args.config, args.prepared, args.detector, args.out, what=args.only or "both", runner=args.runner,
            self_trained=args.self_trained,
        )  # fmt: skip
    split = args.config.tune.objective_split
    for row in best_rows(found.trials):
        sample = ", ".join(
            f"{k.removeprefix('config.')} {v:.3g}" for k, v in row.items() if k.startswith("config.")
        )
        of = "" if row.get("objective_of") in (None, "final") else f" of {row['objective_of']}"
        print(f"trial {row['trial']}: F1 {row['objective']:.4f}{of} ({row['status']}) with {sample}")
    if found.post is not None:
        print(f"{found.model}/card.json: {found.post.text()}")
    print(f"best F1 on {split}: {found.objective:.4f}\nsettings: {args.out}/best.yaml")
    return 0


def _refuse_misplaced(args: argparse.Namespace) -> None:
    if args.over == "loss":
        if args.encoder and args.detector:
            raise ConfigError("trials start from one thing: give --encoder or --detector")
        if args.only or args.self_trained:
            raise ConfigError(
                "--only and --self-trained belong to self-training: leave them out with --over loss"
            )
    elif not args.detector:
        raise ConfigError("self-training begins with a detector: give --detector DIR (or --over loss)")
    elif args.encoder:
        raise ConfigError("--encoder is where supervised trials start: add --over loss")
