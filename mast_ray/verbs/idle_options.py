"""Options that mean something only beside others: typed where they would do nothing, they are refused instead of left aside
without a word.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from mast_ray.config.errors import ConfigError


def typed_options(parser: argparse.ArgumentParser, argv: list[str]) -> frozenset[str]:
    """Names of the arguments that stand on a command line, also of those that repeat their default."""
    untouched: list[
        Any
    ] = []  # a list, because options that may be repeated append to a copy of what they find
    names = vars(parser.parse_args(argv))
    found = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(names, untouched)))
    return frozenset(name for name, value in vars(found).items() if value is not untouched)


def refuse_idle(args: argparse.Namespace, names: Iterable[str], remedy: str) -> None:
    """Refuse options, by their names as attributes, that would do nothing in this command."""
    if idle := [f"--{name.replace('_', '-')}" for name in names if name in args.typed]:
        raise ConfigError(f"{', '.join(idle)} would do nothing here: {remedy}")
