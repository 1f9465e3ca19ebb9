"""The report in a real browser, from disk, with no network: nothing is asked for,
everything works by keyboard.

Set MAST_REPORT_SHOTS to a folder to keep the screenshots for looking at.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from devtools import browser, chromium_path
from test_report import HOSTILE
from whole_report import whole_report

from mast_ray.evaluation.review.verdicts import read_verdicts
from mast_ray.reporting.report.gallery import GallerySettings, build_gallery
from mast_ray.reporting.report.page import report_file
from mast_ray.storage.storage import open_storage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium_path() is None,
        reason="no Chromium: install it (Debian: apt-get install chromium) or set MAST_CHROMIUM",
    ),
]

DURATIONS = """(async () => {
  const lengths = [];
  for (const audio of document.querySelectorAll("audio")) {
    audio.preload = "metadata";
    await new Promise((done, fail) => {
      audio.addEventListener("loadedmetadata", done, { once: true });
      audio.addEventListener("error", () => fail(new Error("no sound: " + audio.error.message)), { once: true });
      audio.load();
    });
    lengths.push(audio.duration);
    audio.preload = "none"; audio.load();  // browsers allow few open players
  }
  return lengths;
})()"""


@pytest.fixture(scope="module")
def page(season, tmp_path_factory) -> Path:
    """A report with every section, and a gallery of real sound."""
    found = build_gallery(
        season.detections,
        season.labels,
        season.recordings,
        open_storage(season.audio),
        GallerySettings(num_examples=90, threshold=0.3),
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_bytes(report_file(replace(whole_report("Danum"), examples=found.examples)))
    return path


async def looked_at(page: Path, tmp_path: Path, width: int, height: int, phone: bool, script) -> None:
    async with browser(tmp_path) as view:
        await view.open(page, width, height, phone)
        await script(view)
        shots = os.environ.get("MAST_REPORT_SHOTS")
        if shots:
            await view.screenshot(Path(shots) / f"{page.parent.name}-{width}.png")
        outside = [url for url in view.requests if not url.startswith(("data:", page.resolve().as_uri()))]
        assert outside == []
        assert view.complaints == []


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 1000, False), (390, 844, True)])
def test_it_opens_without_a_request_a_complaint_or_a_sideways_scroll(page, tmp_path, width, height, phone):
    async def script(view):
        assert await view.value("document.title") == "Danum"
        assert await view.value("document.documentElement.scrollWidth <= innerWidth")
        assert await view.value(
            "[...document.images].every((i) => i.loading === 'lazy' || i.naturalWidth > 0)"
        )

    asyncio.run(looked_at(page, tmp_path, width, height, phone, script))


def test_every_audio_element_has_a_duration(page, tmp_path):
    async def script(view):
        lengths = await view.value(DURATIONS)
        assert len(lengths) == await view.value("document.querySelectorAll('.example').length") >= 40
        assert all(length == pytest.approx(5.12, abs=0.2) for length in lengths)

    asyncio.run(looked_at(page, tmp_path, 1280, 1000, False, script))


def test_the_keys_move_judge_and_undo_and_verdicts_are_saved(page, tmp_path):
    current = "document.querySelector('.example.current')?.id ?? null"
    judged = "document.getElementById('verdict-count').textContent"

    async def script(view):
        await view.call(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=True
        )
        assert await view.value(current) is None
        for key, expected in (("j", 1), ("j", 2), ("k", 1), ("k", 1), ("j", 2)):
            await view.press(key)
            assert await view.value(current) == f"example-{expected}"
        kinds = await view.value("[...document.querySelectorAll('.example')].map((e) => e.dataset.kind)")
        assert kinds[:2] == ["miss", "false_alarm"]
        await view.press("n")  # a false alarm: no call
        assert await view.value(judged) == "1 judged"
        assert (
            await view.value("document.querySelector('#example-2 .no').getAttribute('aria-pressed')")
            == "true"
        )
        await view.press("y")  # changed my mind
        assert (
            await view.value("document.querySelector('#example-2 .yes').getAttribute('aria-pressed')")
            == "true"
        )
        await view.press("u")
        assert await view.value(judged) == "" and await view.value(
            "document.getElementById('download-verdicts').disabled"
        )
        await view.press("n")
        await view.press("k")
        await view.press("y")  # the label of a missed call is right: not a verdict on a detection
        await view.press("j")
        await view.press("j")
        await view.press("j")
        await view.press("y")
        assert await view.value(judged) == "3 judged"
        saved = view.expect("Browser.downloadProgress", lambda event: event["state"] == "completed")
        await view.value("document.getElementById('download-verdicts').click()")
        await saved
        loaded = view.expect("Page.loadEventFired")
        await view.call("Page.reload")
        await loaded
        assert await view.value(judged) == "3 judged"  # kept by the browser

    asyncio.run(looked_at(page, tmp_path, 1280, 1000, False, script))
    lines = (tmp_path / "verdicts.csv").read_text().splitlines()
    assert lines[0] == "detection_id,path,begin_s,end_s,low_hz,high_hz,score,verdict"
    verdicts = read_verdicts(tmp_path / "verdicts.csv")
    assert verdicts.is_right.tolist() == [False, True]
    assert all(0 < score <= 1 for score in verdicts.score)


def test_a_click_on_a_box_plays_that_box_with_a_second_on_both_sides(page, tmp_path):
    async def script(view):
        begin, end, start = await view.value(
            """(() => { const e = document.querySelector('#example-2'), b = e.querySelectorAll('.box')[Number(e.dataset.focus)];
            b.dispatchEvent(new MouseEvent('click', { bubbles: true }));
            return [Number(b.dataset.begin), Number(b.dataset.end), Number(e.dataset.begin)]; })()"""
        )
        heard = await view.value(
            """new Promise((done) => { const a = document.querySelector('#example-2 audio'); const times = [];
            a.addEventListener('timeupdate', () => times.push(a.currentTime));
            a.addEventListener('pause', () => done([Math.min(...times), a.currentTime])); })"""
        )
        assert heard[0] >= max(begin - 1 - start, 0) - 0.05
        assert heard[1] == pytest.approx(min(end + 1 - start, 5.12), abs=0.25)

    asyncio.run(looked_at(page, tmp_path, 1280, 1000, False, script))


def test_the_slider_counts_what_stays_and_fades_the_rest(page, tmp_path):
    async def script(view):
        await view.value(
            """(() => { const s = document.getElementById('threshold-slider'); s.value = 0.75; s.dispatchEvent(new Event('input')); })()"""
        )
        text = await view.value("document.getElementById('threshold-readout').textContent")
        assert text.startswith("10 of 30 detections kept · 5.0 per analysed hour")
        wrong = """[...document.querySelectorAll('.overlay .box.prediction')].filter(
            (b) => b.classList.contains('below') !== (Number(b.dataset.score) < 0.75)).length"""
        assert await view.value(wrong) == 0

    asyncio.run(looked_at(page, tmp_path, 1280, 1000, False, script))


def test_a_cell_of_the_heat_map_can_be_read(page, tmp_path):
    async def script(view):
        caption = await view.value(
            """(() => { const svg = document.querySelector('svg[data-cells]'), c = JSON.parse(svg.dataset.cells), r = svg.getBoundingClientRect();
            const k = r.width / svg.viewBox.baseVal.width;
            const at = (hour) => svg.dispatchEvent(new PointerEvent('pointermove', { clientX: r.left + (c.left + c.width / 2) * k,
              clientY: r.top + (c.top + (23.5 - hour) * c.height) * k, bubbles: true }));
            const text = () => svg.closest('figure').querySelector('figcaption').textContent;
            at(5); const busy = text(); at(4); const quiet = text(); at(12); return [busy, quiet, text()]; })()"""
        )
        assert caption[0].endswith("2024-05-06 05:00, 3 calls in 0.50 h = 6.0 per hour")
        assert caption[1].endswith("2024-05-06 04:00, 0 calls in 0.50 h = 0.0 per hour")
        assert caption[2].endswith("2024-05-06 12:00, nothing recorded")

    asyncio.run(looked_at(page, tmp_path, 1280, 1000, False, script))


def test_hostile_strings_open_no_dialog_and_run_nothing(tmp_path):
    path = tmp_path / "hostile.html"
    path.write_bytes(report_file(whole_report(" ".join(HOSTILE))))

    async def script(view):
        assert await view.value("document.querySelectorAll('script').length") == 2
        assert await view.value("document.querySelectorAll('iframe, base, math, object').length") == 0
        assert await view.value(
            "document.querySelector('h1').textContent.includes('<script>alert(1)</script>')"
        )

    asyncio.run(looked_at(path, tmp_path, 1280, 1000, False, script))
