"""`mast review` in a process of its own, and its page driven by keys and read from the screen."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TEXT = "document.getElementById('{}').textContent"


@contextlib.contextmanager
def served(run: Path, audio: Path, *more: str):
    """(address, process) of a `mast review` of its own."""
    argv = [sys.executable, "-m", "mast_ray", "review", str(run), "--audio", str(audio), "--reviewer", "Ana"]
    process = subprocess.Popen([*argv, *more], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("open http"))
        yield address, process
    finally:
        process.kill()
        process.wait(20)


async def settled(view) -> None:
    """Wait until every key was answered."""
    await view.value(
        """new Promise((done) => { const look = () => document.body?.dataset.busy === "0" ? done() : setTimeout(look, 10); look(); })"""
    )


async def type_keys(view, *keys) -> None:
    """Keys, or (key, shift, alt)."""
    for key in keys:
        await view.press(*key) if isinstance(key, tuple) else await view.press(key)
        await settled(view)


async def shot(view, name: str) -> None:
    if folder := os.environ.get("MAST_REVIEW_SHOTS"):
        await view.screenshot(Path(folder) / f"{name}.png")


class ShownBox(NamedTuple):
    """The chosen box as the page describes it."""

    path: str
    box: tuple[float, float, float, float]  # begin_s, end_s, low_hz, high_hz
    is_judged: bool


async def chosen_box(view) -> ShownBox:
    what, path = (
        await view.value(TEXT.format("what")),
        await view.value("document.querySelector('#place b').textContent"),
    )
    found = re.search(r"([\d.]+) to ([\d.]+) s  ·  ([\d.]+) to ([\d.]+) kHz", what)
    assert found, what
    begin_s, end_s, low_khz, high_khz = map(float, found.groups())
    box = begin_s, end_s, 1000 * low_khz, 1000 * high_khz
    return ShownBox(path, box, not what.startswith("not judged"))
