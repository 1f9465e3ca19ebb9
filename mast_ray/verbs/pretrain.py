"""`mast pretrain PREPARED --out DIR`: masked pretraining on the unlabelled pool."""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
HELP = """Pretrain an encoder on the pool of a prepared archive: hide most of every spectrogram, learn to fill it in.

PREPARED and --out are folders or s3:// prefixes. --out becomes a model folder (weights.safetensors, card.json) with metrics.jsonl and
tensorboard/ beside it. Interrupted, the same command goes on where it was, with any number of workers; finished, it has nothing to do.

Several archives are one: `mast pretrain A B s3://bucket/C --out DIR` takes the pools, labels and splits of all, with one statistics. DIR/archives then stands for
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
        "--dry-run", action="store_true", help="print the plan and every derived quantity only"
    )


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.stages.train.plan import plan_text
    from mast_ray.stages.train.summary import result_text
    from mast_ray.stages.train.train import run_pretrain
    from mast_ray.stages.train.work import PretrainTask
    from mast_ray.tables.joining import archive_to_plan

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.dry_run:
        with archive_to_plan(args.prepared, args.config) as archive:
            print(plan_text(PretrainTask(args.config, archive, args.out)))
        return 0
    summary = run_pretrain(args.config, args.prepared, args.out, runner=args.runner)
    print(result_text(summary, args.out))
    return 0
