"""`mast pseudo-label MODEL PREPARED --out DIR`: detections of every chunk of
the pool, at a low score floor.
"""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
READS_MODELS = ("model",)  # folders, or shipped ones by name
HELP = """Run a detector over the pool of a prepared archive and store what it finds, once per model.

MODEL is a folder written by `mast train` or `mast self-train`; PREPARED and --out are folders or s3:// prefixes. Detections are stored per
chunk at a low score floor and with loose suppression: thresholds, suppression and validity are applied afterwards, without new inference
(`mast self-train`, `mast tune --only post`). Interrupted, the same command goes on where it was; finished, it has nothing to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="detector folder, shipped:tiny, shipped:compact or shipped:energy")
    parser.add_argument("prepared", help="folder or s3:// prefix written by `mast prepare`")
    parser.add_argument("--out", required=True, help="folder or s3:// prefix to write")
    parser.add_argument(
        "--split", action="append", default=[], metavar="NAME",
        help="chunks to go through: pool (default), val, test, site_ood, ...; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--chunks-per-unit",
        type=int,
        default=0,
        help="chunks committed together (default: by size of the pool)",
    )


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.config.errors import OK, PARTIAL, ConfigError
    from mast_ray.stages.self_train.pseudo_label import run_pseudo_label

    if args.chunks_per_unit < 0:
        raise ConfigError(
            f"--chunks-per-unit {args.chunks_per_unit} is no number of chunks: give 1 or more, or leave it out"
        )
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    manifest, was_done = run_pseudo_label(
        args.config,
        args.model,
        args.prepared,
        args.out,
        splits=tuple(args.split) or ("pool",),
        runner=args.runner,
        chunks_per_unit=args.chunks_per_unit,
        boxes="delivered",
    )
    counts = manifest.counts
    done = "already done: " if was_done else ""
    print(
        f"{done}{counts['detections']:,} detections in {counts['chunks']:,} chunks of {counts['recordings']:,} recordings "
        f"({counts['hours']:,.2f} h)\nwritten: {args.out}"
    )
    return PARTIAL if counts["rejected_chunks"] else OK
