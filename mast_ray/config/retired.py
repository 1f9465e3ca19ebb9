"""Settings that are gone. Runs of before recorded all settings: the value that changed nothing is passed over, another refused.

It also stays in what names finished work, so that runs of before are known as done, and go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mast_ray.config.errors import ConfigError

RETIRED = {"augment.bend": 0.0, "self_train.augment.bend": 0.0}  # value that changed nothing


def without_retired(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of settings, or dotted ones, without what is gone."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            kept[name] = without_retired(value, f"{key}.")
        elif key not in RETIRED:
            kept[name] = value
        elif value != RETIRED[key]:
            raise ConfigError(
                f"{key}={value!r}: this setting is gone, it was measured to bring nothing (docs/results.md):\n"
                "leave it out"
            )
    return kept


def with_retired(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a section as runs of before recorded them."""
    kept = {
        name: with_retired(f"{section}.{name}", one) if isinstance(one, dict) else one
        for name, one in values.items()
    }
    gone = {
        key.rpartition(".")[2]: value for key, value in RETIRED.items() if key.rpartition(".")[0] == section
    }
    return kept | gone
