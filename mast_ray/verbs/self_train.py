"""`mast self-train PREPARED --detector DIR --out DIR`: rounds of pseudo-labels, stage 1 and stage 2."""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
READS_MODELS = ("detector", "also")  # folders, or shipped ones by name
HELP = """Improve a detector with the unlabelled pool: it labels the pool, a student learns from these labels (stage 1) and then from the experts'
(stage 2), and becomes the next teacher.

PREPARED, --detector and --out are folders or s3:// prefixes; OUT/model is the result, OUT/rounds.json its figures per round on every split with
the threshold frozen from validation. The best round on `ood_dev` (where it is labelled, else on validation) is delivered, and never a student that is
worse there than its teacher. Curricula by name: `--set self_train.curriculum=two_stage|stage1_only|stage2_only|union|mixed|mixed_then_expert`, and
what they are measured against: `control` (as long on expert labels) and `ceiling` (the pool's labels from --truth). Policies for the threshold:
`--set self_train.policy=fixed|tuned|per_group_mixture|per_group_quantile|precision|precision_pool`. When pseudo-labels collapse between rounds, the
governor stops and falls back to the model before. Interrupted, the same command goes on where it was; finished, it has nothing to do.

Several archives are one: `mast self-train A B s3://bucket/C --detector MODEL --out DIR` takes the pools, labels and splits of all, with one statistics. DIR/archives then stands for
them in every other verb (mast evaluate MODEL DIR/archives)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prepared",
        nargs="+",
        metavar="PREPARED",
        help="folder or s3:// prefix written by `mast prepare`; several are taken together",
    )
    parser.add_argument(
        "--detector",
        required=True,
        help="folder written by `mast train` (or shipped:tiny, shipped:compact, shipped:energy): round 0",
    )
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="further detectors that label the pool together with the first, in round 1",
    )
    parser.add_argument("--out", required=True, help="folder or s3:// prefix to write")
    parser.add_argument(
        "--truth",
        default="",
        help="truth of the whole archive (truth.csv of `mast synth`), for figures of the pseudo-labels; labels with curriculum=ceiling",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what of it is done")


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.stages.self_train.plan import plan_text
    from mast_ray.stages.self_train.round_table import rounds_text
    from mast_ray.stages.self_train.self_train import run_self_train
    from mast_ray.tables.joining import archive_to_plan

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.dry_run:
        with archive_to_plan(args.prepared, args.config) as archive:
            print(plan_text(args.config, archive, args.detector, args.out, args.also))
        return 0
    result = run_self_train(
        args.config,
        args.prepared,
        args.detector,
        args.out,
        truth=args.truth,
        also=args.also,
        runner=args.runner,
    )
    print(rounds_text(result.rounds, args.config.evaluate.average_precision))
    if result.stopped:
        print(f"stopped at {result.stopped}")
    final = result.final
    print(f"kept: {final.get('why', 'the last round')}")
    print(f"model of round {final['round']}: {args.out}/model")
    return 0
