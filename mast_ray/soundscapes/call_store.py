"""The syllables of all clips, cut once and shared by the processes that render: one file of samples, mapped into memory, and its index.

Cutting two thousand clips takes a minute; sixteen processes would each spend it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from mast_ray.soundscapes.calls import Waveform
from mast_ray.soundscapes.clips import remember_calls

_SAMPLES, _INDEX = "samples.npy", "index.json"


def write_call_store(folder: Path, paths: Sequence[str], calls: Sequence[tuple[Waveform, ...]]) -> None:
    """Write the calls of every path."""
    folder.mkdir(parents=True, exist_ok=True)
    waves = [wave for of_path in calls for wave in of_path]
    ends = np.cumsum([0, *(len(wave) for wave in waves)]).tolist()
    samples = np.concatenate([*waves, np.zeros(1, np.float32)])  # an empty file could not be mapped
    np.save(folder / _SAMPLES, samples.astype(np.float32, copy=False))
    index: dict[str, list[tuple[int, int]]] = {}
    number = 0
    for path, of_path in zip(paths, calls, strict=True):
        index[path] = [(ends[number + k], ends[number + k + 1]) for k in range(len(of_path))]
        number += len(of_path)
    (folder / _INDEX).write_text(json.dumps(index), encoding="utf-8")


@lru_cache(maxsize=4)
def use_call_store(folder: str) -> None:
    """Let this process take its calls from a store; said twice, it is read once."""
    samples = np.load(Path(folder) / _SAMPLES, mmap_mode="r")
    index = json.loads((Path(folder) / _INDEX).read_text(encoding="utf-8"))
    remember_calls(
        {path: tuple(np.asarray(samples[a:b]) for a, b in places) for path, places in index.items()}
    )
