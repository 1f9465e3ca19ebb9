"""YOLO label files (read only): `class centre_x centre_y width height` as shares of an image of the spectrogram, y from the top.

A share is neither a second nor a hertz: what the images show must be said. Frequency must be linear in the image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.recordings.annotations.model import Annotation, Parsed
from mast_ray.recordings.annotations.tabular import lines_of

_LINE = re.compile(r"^\s*\d+(\s+(0?\.\d+|[01](\.\d*)?(e-?\d+)?|\d\.\d+e-\d+)){4,5}\s*$", re.IGNORECASE)
NAMES = "classes.txt"  # beside the label files: a name per line


@dataclass(frozen=True)
class ImageScale:
    """What an image of a spectrogram shows, from edge to edge."""

    seconds: float
    low_hz: float
    high_hz: float

    @classmethod
    def of_items(cls, items: list[str]) -> ImageScale | None:
        """From `["seconds=10", "low_hz=0", "high_hz=8000"]`; None where nothing is said."""
        if not items:
            return None
        try:
            values = {name: float(value) for name, value in (item.split("=", 1) for item in items)}
            scale = cls(**({"low_hz": 0.0} | values))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"--image-scale {' '.join(items)} cannot be read:\nwrite seconds=10 low_hz=0 high_hz=8000"
            ) from error
        if not (scale.seconds > 0 and 0 <= scale.low_hz < scale.high_hz):
            raise ConfigError(
                f"--image-scale {' '.join(items)} is an image without length or height:\nwrite seconds=10 low_hz=0 high_hz=8000"
            )
        return scale


def is_yolo(text: str) -> bool:
    lines = [line for line in lines_of(text) if line.strip()]
    return bool(lines) and all(_LINE.match(line) for line in lines)


def parse(text: str, source: str, scale: ImageScale | None, names: Mapping[str, str]) -> Parsed:
    if scale is None:
        raise DataError(
            f"{source}: a YOLO label file gives shares of an image, not seconds and hertz:\n"
            "say what the images show: --image-scale seconds=10 low_hz=0 high_hz=8000 (frequency linear)"
        )
    annotations = []
    for line in lines_of(text):
        if not line.strip():
            continue
        label, *shares = line.split()
        centre_x, centre_y, width, height = (float(share) for share in shares[:4])
        top_hz = scale.high_hz - (centre_y - height / 2) * (scale.high_hz - scale.low_hz)
        bottom_hz = scale.high_hz - (centre_y + height / 2) * (scale.high_hz - scale.low_hz)
        begin_s, end_s = ((centre_x + side * width / 2) * scale.seconds for side in (-1, 1))
        score = float(shares[4]) if len(shares) > 4 else None
        annotations.append(Annotation("", begin_s, end_s, bottom_hz, top_hz, names.get(label, label), score))
    return Parsed(tuple(annotations), ("",))


def class_names(text: str) -> dict[str, str]:
    """Number of a class -> its name, from a file with a name per line."""
    return {str(number): line.strip() for number, line in enumerate(lines_of(text)) if line.strip()}
