"""The config as text for people: YAML with each knob's description as a comment,
and a Markdown table for docs.
"""

from __future__ import annotations

import textwrap

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


def knobs_markdown(recipes: dict[str, Config]) -> str:
    """One Markdown table: key, value in every recipe (blank where as in the first), description."""
    names = list(recipes)
    rows = [f"| key | {' | '.join(names)} | what it is |", f"|---|{'---|' * len(names)}---|"]
    for key, field in leaf_keys(Config).items():
        values = []
        for config in recipes.values():
            node: object = config
            for part in key.split("."):
                node = getattr(node, part)
            values.append(_plain(node))
        shown = [values[0]] + [v if v != values[0] else "" for v in values[1:]]
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {' | '.join(shown)} | {text} |")
    return "\n".join(rows) + "\n"
