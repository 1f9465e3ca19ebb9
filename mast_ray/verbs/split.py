"""`mast split PREPARED --set split...`: deal the recordings again; no spectrogram is touched."""

from __future__ import annotations

import argparse

USES_CONFIG = True
HELP = """Deal the recordings of a prepared archive into train, validation, test, OOD sets and pool again.

Rewrites splits.parquet, stats.json and the manifest only. What --set does not name stays as the archive was prepared with; with --recipe or
--config everything is as these say."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prepared", help="folder or s3:// prefix written by `mast prepare`")


def run(args: argparse.Namespace) -> int:
    from mast_ray.stages.prepare import print_split, say_silence
    from mast_ray.tables.dealing.resplit import as_prepared_but, resplit
    from mast_ray.tables.prepared import open_prepared

    config = args.config
    if args.recipe is None and args.config_file is None:
        config = as_prepared_but(args.prepared, config, args.sets)
    print_split(resplit(args.prepared, config))
    dealt = open_prepared(args.prepared, args.config.storage)
    say_silence(dealt.labels, dealt.splits)
    return 0
