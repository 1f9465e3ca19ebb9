"""The arguments that say, after detection, when and where was recorded: the same words everywhere."""

from __future__ import annotations

import argparse


def add_restating_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timezone",
        default="",
        metavar="ZONE",
        help="IANA zone of clocks without one, e.g. Asia/Makassar; corrects the audio.timezone of detect where file names say the time",
    )
    parser.add_argument(
        "--table",
        dest="site_table",
        default="",
        metavar="CSV",
        help="table of recordings or sites: file, site, start_time, timezone, latitude, longitude",
    )
