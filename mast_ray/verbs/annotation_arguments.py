"""The arguments by which a verb is given annotations: the same words everywhere."""

from __future__ import annotations

import argparse

from mast_ray.config.errors import ConfigError
from mast_ray.verbs.idle_options import refuse_idle


def add_annotation_arguments(parser: argparse.ArgumentParser, required: bool = False) -> None:
    parser.add_argument(
        "--annotations",
        required=required,
        default="",
        help="annotation file or folder (Raven, Audacity, CSV, AOEF, Kaleidoscope, BirdNET, AviaNZ, ...)",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="FIELD=COLUMN",
        help="columns of your own tables: file=recording_id begin_s=t_min end_s=t_max low_hz=f_min high_hz=f_max label=species",
    )
    parser.add_argument(
        "--listened",
        default="",
        metavar="TABLE",
        help="CSV of what was gone through: file, and begin_s, end_s, label where only some of it was",
    )
    parser.add_argument(
        "--skip-missing",
        action="store_true",
        help="go on without annotations whose recording is not in the archive",
    )
    parser.add_argument(
        "--image-scale",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="what the images of YOLO label files show: seconds=10 low_hz=0 high_hz=8000",
    )


def refuse_idle_of_annotations(args: argparse.Namespace) -> None:
    """How annotations are read says nothing where there are none."""
    if not args.annotations:
        refuse_idle(args, ("columns", "image_scale"), "it is for annotations, so add --annotations TABLES")
    if not (args.annotations or args.listened or getattr(args, "dataset", "plain") != "plain"):
        refuse_idle(args, ("skip_missing",), "it is for annotations, so add --annotations TABLES")


def columns_of(items: list[str]) -> tuple[tuple[str, str], ...]:
    """`["begin_s=T 0", ...]` -> (("begin_s", "T 0"), ...)."""
    pairs = []
    for item in items:
        field, equals, column = item.partition("=")
        if not equals or not column:
            raise ConfigError(f"--columns {item!r} maps nothing: write FIELD=COLUMN, e.g. begin_s=t_min")
        pairs.append((field.strip(), column.strip()))
    return tuple(pairs)


def annotation_argv(args: argparse.Namespace) -> tuple[str, ...]:
    """The same arguments for another verb."""
    return (
        *(("--annotations", args.annotations) if args.annotations else ()),
        *(("--columns", *args.columns) if args.columns else ()),
        *(("--listened", args.listened) if args.listened else ()),
        *(("--skip-missing",) if args.skip_missing else ()),
        *(("--image-scale", *args.image_scale) if args.image_scale else ()),
    )
