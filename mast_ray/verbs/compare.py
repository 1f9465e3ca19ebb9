"""`mast compare PREPARED --out DIR`: train and score several methods side by
side, and write the paper's tables.
"""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
HELP = """Train and score several methods with the same data, augmentation, samples and evaluation, over several seeds.
(Two finished models: `mast evaluate MODEL PREPARED --against OTHER`.)

Writes the paper's tables (in-domain, temporal, cross-site) as Markdown, CSV and LaTeX with 95 % intervals; differences within noise are
marked. Interrupted, the same command goes on where it was. Methods, in the order of the tables:
  pieces faster_rcnn fcos resnet_fpn yolo26 detr audiomae vit_scratch     baselines, the first of which has no network
  mast mast_long mast_st                                MAST, trained as long as with self-training, with self-training
  no_contrastive no_adapter no_pretraining              ablations of the pipeline
  adapter_conv adapter_anisotropic adapter_upsampling   adapters
  stage1_only stage2_only union                         ablations of the curriculum"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prepared", help="folder or s3:// prefix written by `mast prepare`")
    parser.add_argument("--out", required=True, help="folder or s3:// prefix to write")
    parser.add_argument("--methods", default="", metavar="LIST",
                        help="comma-separated (default pieces,faster_rcnn,fcos,detr,vit_scratch,mast,mast_st; tiny: pieces,mast,mast_st,fcos)")  # fmt: skip
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="runs per method (default 3; tiny: 1)"
    )
    parser.add_argument(
        "--encoder", default="", help="folder written by `mast pretrain` (default: pretrain here)"
    )
    parser.add_argument(
        "--audiomae",
        default="",
        metavar="FILE",
        help="AudioMAE's public weights (.pth as published, or .safetensors), for that method",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs only")


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.config.errors import ConfigError
    from mast_ray.stages.studies.compare import Comparison, planned_runs, run_comparison
    from mast_ray.stages.studies.methods import DEFAULT_SEEDS, chosen_methods
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.verbs.idle_options import refuse_idle

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.seeds < 0:
        raise ConfigError(f"--seeds {args.seeds} must be at least 1")
    names = [name.strip() for name in args.methods.split(",") if name.strip()]
    config = args.config
    methods = chosen_methods(names, config, args.audiomae)
    starts = {method.start for method in methods}
    if "public" not in starts:
        refuse_idle(args, ("audiomae",), "it is for the method audiomae, add that to --methods")
    if "own" not in starts:
        refuse_idle(
            args, ("encoder",), f"none of {', '.join(method.name for method in methods)} starts from it"
        )
    num_seeds = args.seeds or DEFAULT_SEEDS.get(config.recipe, 3)
    seeds = tuple(range(config.seed, config.seed + num_seeds))
    study = Comparison(config, args.prepared, args.out, methods, seeds, args.encoder, args.audiomae)
    if args.dry_run:
        archive = open_prepared(args.prepared, config.storage)
        for one in planned_runs(study, archive, args.encoder or f"{args.out}/encoder", study.splits):
            print(one.name + (f"   (after {one.after})" if one.after else ""))
        return 0
    print(run_comparison(study, args.runner)["tables"])
    print(f"wrote comparison.md, tables.csv and one .md and .tex per table in {args.out}")
    return 0
