"""The server over a real socket: strangers are refused, nothing outside the run is readable, hostile names are text."""

import asyncio
import html
import io
import json
import re

import aiohttp
import numpy as np
import pytest
import soundfile
from PIL import Image
from review_run import PATHS, write_run

from mast_ray.stages.review.asked import AskedQueues
from mast_ray.stages.review.first_page import MARK, window_of
from mast_ray.stages.review.found_boxes import detections_of, load_boxes
from mast_ray.stages.review.pictures import WindowPictures, within_band
from mast_ray.stages.review.server import PAGE, ReviewServer, serve
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage


@pytest.fixture(scope="module")
def run_and_audio(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("served"))


@pytest.fixture()
def talk(run_and_audio, tmp_path):
    """Serve the run and let an async function talk to it: talk(f) -> what f(client, address) returned."""
    run, audio = run_and_audio
    found = load_boxes(detections_of(str(run)), open_storage(audio), 0.5)
    session = ReviewSession(found, tmp_path / "corrections", "Ana")
    server = ReviewServer(AskedQueues(session), WindowPictures(open_storage(audio)), "run")

    async def whole(script):
        told = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(server, 0, told.set_result))
        try:
            async with aiohttp.ClientSession() as client:
                return await script(client, await told)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    return lambda script: asyncio.run(whole(script))


async def status(client, url, method="GET", **more):
    async with client.request(method, url, **more) as answer:
        return answer.status


def root_of(address):
    return address.rstrip("/").rpartition("/")[0]


def test_it_listens_on_this_computer_only(talk):
    async def script(client, address):
        assert address.startswith("http://127.0.0.1:")
        assert await status(client, address) == 200

    talk(script)


def test_without_the_token_everything_is_403(talk):
    async def script(client, address):
        root, token = root_of(address), address.rstrip("/").rpartition("/")[2]
        wrong = [
            "",
            "/",
            "/run",
            "/page/review.js",
            f"/{token[:-1]}/",
            f"/{token}x/run",
            "//",
            f"/x/{token}/run",
        ]
        for path in wrong:
            assert await status(client, root + path) == 403, path
        assert await status(client, f"{root}/act", "POST", json={"action": "accept"}) == 403
        assert await status(client, f"{address}run") == 200

    talk(script)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_request_of_another_page_is_403_with_the_token_too(talk, tmp_path, headers):
    async def script(client, address):
        assert await status(client, f"{address}run", headers=headers) == 403
        body = {"action": "draw", "recording": 0, "corners": [1, 500, 2, 900]}
        assert await status(client, f"{address}act", "POST", json=body, headers=headers) == 403
        assert await status(client, f"{address}run") == 200

    talk(script)
    assert not (tmp_path / "corrections").exists()


def test_a_form_of_another_page_can_do_nothing(talk):
    async def script(client, address):
        assert await status(client, f"{address}act", "POST", data={"action": "accept"}) == 415
        assert await status(client, f"{address}undo", "POST", data=b"{}") == 415
        assert await status(client, f"{address}act") == 405

    talk(script)


def test_nothing_but_the_page_and_the_recordings_by_number_is_readable(talk, run_and_audio):
    async def script(client, address):
        tricks = ["page/..%2Fserver.py", "page/%2e%2e/server.py", "page/..\\server.py", "page/%2Fetc%2Fpasswd",
                  "page/review.js%00.css", "page/", "page/__init__.py", "../server.py"]  # fmt: skip
        for trick in tricks:
            async with client.get(__import__("yarl").URL(address + trick, encoded=True)) as answer:
                assert answer.status in (403, 404), trick
        for query in (
            "recording=-1",
            "recording=3",
            "recording=..%2Fx",
            "recording=0&begin_s=-1",
            "recording=0&begin_s=nan",
        ):
            rest = "" if "begin_s" in query else "&begin_s=0"
            for what in ("picture", "sound", "boxes"):
                assert await status(client, f"{address}{what}?{query}{rest}&seconds=5") == 400, (what, query)
        assert await status(client, f"{address}picture?recording=0&begin_s=0&seconds=100000") == 400

    talk(script)


def test_a_recording_whose_path_leads_outside_is_not_read(run_and_audio, tmp_path):
    from mast_ray.config.errors import DataError

    (tmp_path / "inside").mkdir()
    soundfile.write(tmp_path / "secret.wav", np.zeros(16_000), 16_000)
    (tmp_path / "inside" / "link.wav").symlink_to(tmp_path / "secret.wav")
    pictures = WindowPictures(open_storage(tmp_path / "inside"))
    for path in ("../secret.wav", str(tmp_path / "secret.wav"), "link.wav"):
        with pytest.raises(DataError, match="outside"):
            pictures.picture(path, 0.0, 0.5)


def test_every_answer_keeps_the_page_to_itself(talk):
    async def script(client, address):
        for url in (address, f"{address}run", f"{address}page/review.js", root_of(address)):
            async with client.get(url) as answer:
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert "Access-Control-Allow-Origin" not in answer.headers

    talk(script)


def test_the_page_asks_nobody_else_and_makes_no_html_of_text():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "http://" not in text and "https://" not in text, path.name
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            'setAttribute("style"',
        ):
            assert way not in text, (path.name, way)


def test_the_page_names_what_it_will_ask_first_and_all_of_it_is_answered(talk):
    async def script(client, address):
        async with client.get(address) as answer:
            page = await answer.text()
        named = [html.unescape(found) for found in re.findall(r'rel="preload"[^>]*href="([^"]*)"', page)]
        assert [name.split("?")[0] for name in named] == ["run", "next", "queue", "picture"]
        assert MARK not in page
        return [await status(client, address + name) for name in named]

    assert talk(script) == [200] * 4


def test_the_first_window_is_the_one_that_the_page_makes():
    box = {"recording": 3, "begin_s": 12.0, "end_s": 12.5}
    assert window_of(box, 30.0) == "recording=3&begin_s=7.130&seconds=10.240"
    assert window_of(box | {"begin_s": 0.5, "end_s": 0.9}, 30.0) == "recording=3&begin_s=0.000&seconds=10.240"
    assert (
        window_of(box | {"begin_s": 29.0, "end_s": 30.0}, 30.0) == "recording=3&begin_s=19.760&seconds=10.240"
    )
    assert (
        window_of(box | {"begin_s": 10.0, "end_s": 20.0}, 30.0) == "recording=3&begin_s=8.500&seconds=13.000"
    )


def test_a_picture_is_exactly_its_window_and_a_sound_only_its_band(talk):
    async def script(client, address):
        async with client.get(f"{address}picture?recording=0&begin_s=0.5&seconds=2.5") as answer:
            assert Image.open(io.BytesIO(await answer.read())).size == (250, 128)
        async with client.get(f"{address}picture?recording=0&begin_s=29&seconds=2") as answer:
            picture = np.asarray(Image.open(io.BytesIO(await answer.read())).convert("L"))
            assert picture.shape == (128, 200) and picture[:, 104:].max() < 10  # over after one second
        async with client.get(
            f"{address}sound?recording=0&begin_s=0&seconds=3&low_hz=3000&high_hz=4000"
        ) as answer:
            samples, rate_hz = soundfile.read(io.BytesIO(await answer.read()))
            assert rate_hz == 16_000 and len(samples) == 48_000

    talk(script)


def test_a_band_keeps_what_is_in_it_and_nothing_else():
    time_s = np.arange(16_000) / 16_000
    low, high = (np.sin(2 * np.pi * hz * time_s).astype(np.float32) for hz in (500, 3500))
    heard = within_band(low + high, 3000.0, 4000.0)[2000:-2000]
    assert np.abs(heard - high[2000:-2000]).max() < 0.02


def test_acts_come_back_changed_and_hostile_names_are_kept_as_text(talk, tmp_path):
    hostile = "<script>alert(1)</script>../../x"

    async def script(client, address):
        async with client.get(f"{address}queue?name=uncertain&part=0&first=0&count=2") as answer:
            page = await answer.json()
        assert page["total"] == 24
        body = {"action": "name", "boxes": [page["items"][0]["id"]], "label": hostile, "queue": "uncertain"}
        async with client.post(f"{address}act", json=body) as answer:
            (box,) = (await answer.json())["changed"]
        assert (box["label"], box["verdict"]) == (hostile, "right")
        async with client.get(f"{address}run") as answer:
            assert answer.content_type == "application/json"
            facts = await answer.json()
        assert hostile in facts["names"] and sorted(PATHS) == [row[0] for row in facts["recordings"]]
        for wrong in ({"action": "rm"}, {"action": "accept", "boxes": "x"}, {"action": "draw", "corners": [1, 2]},
                      {"action": "accept", "boxes": ["x"], "queue": "mine"}, [1], "x"):  # fmt: skip
            assert await status(client, f"{address}act", "POST", json=wrong) == 400
        huge = {"action": "draw", "recording": 0, "corners": [1, 1, 10**400, 5]}
        assert await status(client, f"{address}act", "POST", json=huge) == 400
        deep = {"data": b"[" * 200_000, "headers": {"Content-Type": "application/json"}}
        assert await status(client, f"{address}act", "POST", **deep) == 400
        for begin_s in ("inf", "1e300"):
            for what in ("picture", "sound"):
                asked = f"{address}{what}?recording=0&begin_s={begin_s}&seconds=5"
                assert await status(client, asked, "GET") == 400
        async with client.post(f"{address}undo", json={}) as answer:
            assert (await answer.json())["changed"][0]["verdict"] == ""

    talk(script)
    actions = [
        json.loads(line)["action"] for line in (tmp_path / "corrections/Ana.jsonl").read_text().splitlines()
    ]
    assert actions == ["name", "undo"]


def test_a_full_disk_is_said_and_nothing_is_shown_as_done(talk, tmp_path, monkeypatch):
    import errno

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script(client, address):
        async with client.get(f"{address}queue?name=uncertain&part=0&first=0&count=1") as answer:
            (item,) = (await answer.json())["items"]
        monkeypatch.setattr("os.fsync", full)
        async with client.post(f"{address}act", json={"action": "accept", "boxes": [item["id"]]}) as answer:
            assert answer.status == 500 and "No space" in (await answer.json())["error"]
        async with client.get(f"{address}queue?name=uncertain&part=0&first=0&count=1") as answer:
            assert (await answer.json())["items"][0]["verdict"] == ""

    talk(script)
