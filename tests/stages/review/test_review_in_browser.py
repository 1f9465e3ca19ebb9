"""The review in a real browser, by keyboard, over a server that is killed in between.

Set MAST_REVIEW_SHOTS to a folder to keep the screenshots for looking at.
"""

import asyncio
import json
import signal

import pytest
from devtools import browser, chromium_path
from review_page import TEXT, served, settled, shot, type_keys
from review_run import LABELS, write_run

from mast_ray.evaluation.review.corrections import read_logs
from mast_ray.evaluation.review.review_state import fold_log

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium_path() is None,
        reason="no Chromium: install it (Debian: apt-get install chromium) or set MAST_CHROMIUM",
    ),
]


def test_boxes_are_judged_drawn_and_named_by_keyboard_and_outlive_the_server(tmp_path):
    run, audio = write_run(tmp_path)

    async def first(address):
        async with browser(tmp_path / "one") as view:
            await view.open(address, 1280, 720)
            await settled(view)
            assert await view.value("document.getElementById('canvas').width") > 500
            assert len(view.requests) == len(
                set(view.requests)
            )  # what the page names first is what it asks for
            await type_keys(view, "y", "n", "n", "u")  # the last rejection is taken back
            await type_keys(view, "Enter", *"Hyla", "Enter")
            await type_keys(view, "d", ("ArrowRight", True), ("ArrowRight", True), ("ArrowUp", True), "Enter")
            await type_keys(view, "Enter", *"Hy", "Tab", "Enter")  # completed
            await type_keys(view, "m", "ArrowRight", "Enter")
            await type_keys(view, "w", "2", "y", "y")  # a window looked at; two at random
            await shot(view, "1280")
            told = await view.value(TEXT.format("progress"))
            assert view.complaints == []
            assert [url for url in view.requests if not url.startswith((address, "data:"))] == []
            return told

    async def second(address):
        async with browser(tmp_path / "two") as view:
            await view.open(address, 1920, 1080)
            await settled(view)
            await type_keys(view, "2")
            marks = await view.value(
                "[...document.querySelectorAll('.row .mark')].map((m) => m.textContent).slice(0, 3)"
            )
            current = await view.value("document.querySelector('.row.current').dataset.index")
            await shot(view, "1920")
            precision = await view.value(TEXT.format("precision"))
            return marks, current, await view.value(TEXT.format("progress")), precision

    with served(run, audio, "--threshold", "0.5") as (address, process):
        asyncio.run(first(address))
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    before = [json.loads(line)["action"] for line in (run / "corrections/Ana.jsonl").read_text().splitlines()]
    assert before == [
        "accept",
        "reject",
        "reject",
        "undo",
        "name",
        "draw",
        "name",
        "change",
        "looked",
        "accept",
        "accept",
    ]
    with served(run, audio, "--threshold", "0.5") as (address, _):
        marks, current, progress, precision = asyncio.run(second(address))
    assert marks == ["✓", "✓", "○"] and current == "2"  # goes on where it was
    assert progress.startswith("5 of 24 judged · 1 drawn")
    assert precision == "precision 1.00 [0.34, 1.00] of 2 at random"
    boxes = fold_log(read_logs(run / "corrections").actions)["Ana"].boxes
    (drawn,) = [box for box in boxes.values() if not box.detection_id]
    assert drawn.label == "Hyla" and drawn.is_changed
    assert sorted(box.verdict for box in boxes.values()) == ["right"] * 5 + ["wrong"]


def test_hostile_names_do_nothing_and_many_look_alikes_are_judged_at_once(tmp_path):
    run, audio = write_run(tmp_path, embedded=True)
    hostile = "<img src=x onerror=alert(3)>"

    async def script(address):
        async with browser(tmp_path / "profile") as view:
            await view.open(address, 1280, 720)
            await settled(view)
            await type_keys(view, "Enter", *hostile, "Enter")
            rows = await view.value("[...document.querySelectorAll('.row .label')].map((m) => m.textContent)")
            assert hostile in rows and set(LABELS) <= set(rows)
            await type_keys(view, "3", "4", "5")  # by site and hour, by recording, look-alikes
            assert await view.value("document.querySelectorAll('.member').length") >= 5
            await type_keys(view, "ArrowRight", "x", "y")
            for key in (" ", "b", "s", "+", "-", "f", "h", "j", "k", "g", "?"):
                await view.press(key)
            await settled(view)
            assert await view.value("document.getElementById('help').open")
            assert await view.value("document.images.length") == 0
            assert await view.value("document.querySelectorAll('script').length") == 1
            assert await view.value("document.documentElement.scrollWidth <= innerWidth")
            await shot(view, "look-alikes")
            assert view.complaints == []  # no dialog, no error, nothing that the policy had to stop
            assert [url for url in view.requests if not url.startswith((address, "data:"))] == []

    with served(run, audio, "--threshold", "0.5") as (address, _):
        asyncio.run(script(address))
    actions = read_logs(run / "corrections").actions
    group = [a for a in actions if a.queue == "cluster"]
    assert len(group) >= 4 and len({a.time for a in group}) == 1
