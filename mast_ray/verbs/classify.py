"""`mast classify MODEL ARCHIVE`: names for the boxes of a detector."""

from __future__ import annotations

import argparse

from mast_ray.config.errors import ConfigError

USES_CONFIG = True
HELP = """Learn names for the boxes of a detector from the labels of an archive's training boxes.

  mast classify run/detector run/prepared              names go into the model folder
  mast classify shipped:tiny prepared --out named      a copy of the shipped detector, with names

ARCHIVE is a folder or s3:// prefix written by `mast prepare`. A light classifier over box embeddings is chosen on the validation split; a box whose
name is more likely wrong than right is called `unknown`. From then on `mast detect` fills `label` and `label_score`, and exports, `mast
summarise`, `mast report` and `mast evaluate --by label` use them. A few labels are enough; for labels nobody trained, `mast embed` finds look-alikes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a detector, shipped:tiny or shipped:compact")
    add("prepared", metavar="ARCHIVE", help="folder or s3:// prefix written by `mast prepare`")
    add("--out", default="", help="write a copy of the model with names here (default: into MODEL itself)")
    add("--embedding", choices=("auto", "neck", "encoder", "projection"), default="auto",
        help="what of the detector names are read from (default: whichever names held-out boxes best)")  # fmt: skip
    add("--precision", type=float, default=None, metavar="P",
        help="call a box `unknown` unless this share of such names is right on held-out boxes (instead of --unknown-below)")  # fmt: skip
    add("--unknown-below", type=float, default=0.5, metavar="P",
        help="chance of being right below which a box is `unknown` (default 0.5: more likely wrong than right)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from mast_ray.stages.score.classify import ClassifyKnobs, classify
    from mast_ray.verbs.gpu import folder_of_model
    from mast_ray.verbs.idle_options import refuse_idle

    if args.precision is not None:
        refuse_idle(args, ("unknown_below",), "--precision chooses it, give one of them")
    model = folder_of_model(args.model, args)
    if model != args.model and not args.out:
        raise ConfigError(
            f"{args.model} belongs to the installation: say where its copy with names goes, --out DIR"
        )
    knobs = ClassifyKnobs(args.embedding, args.unknown_below, args.precision)
    classify(args.config, model, args.prepared, args.out, knobs)
    return 0
