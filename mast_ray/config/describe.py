"""The config as text for people: YAML with each knob's description as a comment,
and a Markdown table for docs.
"""

from __future__ import annotations

import textwrap
from operator import attrgetter

import yaml
from pydantic import BaseModel

from mast_ray.config.loading import leaf_keys
from mast_ray.config.tree import Config


def _plain(value: object) -> str:
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def described_yaml(section: BaseModel, indent: int = 0) -> str:
    """YAML of a section, every knob under its description; it can be read back."""
    lines: list[str] = []
    pad = "  " * indent
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        comment = textwrap.wrap(field.description or "", 100 - len(pad))
        lines += [f"{pad}# {line}" for line in comment]
        if isinstance(value, BaseModel):
            lines += [f"{pad}{name}:", described_yaml(value, indent + 1)]
        else:
            lines.append(f"{pad}{name}: {_plain(value)}")
    return "\n".join(lines)


FIRST_KNOBS = (
    "audio.timezone",
    "labels.include",
    "split.ood_sites",
    "model.size",
    "pretrain.init",
    "detector.epochs",
    "detector.batch_size",
    "self_train.rounds",
    "cluster.num_workers",
    "storage.endpoint_url",
)


def knobs_markdown(recipes: dict[str, Config]) -> str:
    """The knobs that a user will touch, then all of them."""
    return (
        f"## The ten you will touch\n\n{_table(list(FIRST_KNOBS), recipes)}\n"
        f"## All of them\n\n{_table(list(leaf_keys(Config)), recipes)}"
    )


def _table(keys: list[str], recipes: dict[str, Config]) -> str:
    """One Markdown table: key, value in every recipe (blank where as in the first), description."""
    names, fields = list(recipes), leaf_keys(Config)
    rows = [f"| key | {' | '.join(names)} | what it is |", f"|---|{'---|' * len(names)}---|"]
    for key in keys:
        values = [_plain(attrgetter(key)(config)) for config in recipes.values()]
        shown = [values[0]] + [v if v != values[0] else "" for v in values[1:]]
        text = " ".join((fields[key].description or "").split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {' | '.join(shown)} | {text} |")
    return "\n".join(rows) + "\n"
