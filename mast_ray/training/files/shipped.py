"""Models that come with the package: a general detector of animal sound in two sizes, checked like any other, and one that
was never trained.

`tiny` is for two cores, `compact` for a GPU or a patient laptop. Where a model is asked for, `shipped` means the one
that fits the machine, `shipped:tiny` and `shipped:compact` name one, and anything else is a folder. To listen without
any training of one's own FIRST_LOOK is used everywhere: it was trained for longer, and finds more (docs/measured/real_sound.md).
`shipped:energy` boxes whatever stands out of the background: to compare with, and to teach with where nothing is labelled.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from mast_ray.config.errors import ConfigError, DataError

SHIPPED, SCRATCH = "shipped", "scratch"
SIZES = ("tiny", "compact")
ENERGY = "energy"
FIRST_LOOK = f"{SHIPPED}:tiny"


def shipped_model(name: str) -> Path:
    """The folder of a shipped detector: weights.safetensors, card.json."""
    if name not in (*SIZES, ENERGY):
        raise ConfigError(
            f"no detector {name!r} is shipped: use {SHIPPED}:{f' or {SHIPPED}:'.join((*SIZES, ENERGY))}"
        )
    folder = Path(str(files("mast_ray"))) / "weights" / name
    if not (folder / "card.json").is_file():
        raise DataError(
            f"the {name} detector is missing from this installation ({folder}):\n"
            "install mast_ray again, or name a model folder of your own"
        )
    return folder


def is_shipped(folder: str) -> bool:
    """Whether a model's folder is the package's own, which all its users share: it is read, never written."""
    own = Path(str(files("mast_ray"))) / "weights"
    return "://" not in folder and Path(folder).resolve().is_relative_to(own.resolve())


def model_folder(name: str, has_gpu: bool) -> str:
    """The folder that a user's word means: `shipped`, `shipped:NAME`, or a folder itself."""
    if name == SHIPPED:
        return str(shipped_model("compact" if has_gpu else "tiny"))
    if name.startswith(f"{SHIPPED}:"):
        return str(shipped_model(name.removeprefix(f"{SHIPPED}:")))
    return name
