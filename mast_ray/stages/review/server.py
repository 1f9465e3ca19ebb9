"""The review page's server: on 127.0.0.1 only, below an address that holds a secret, for this page and no other.

Everything lies below /TOKEN/: page files, JSON, pictures and sounds. Whoever does not know the token gets 403, and so
does a request that another site's page makes (Origin, Sec-Fetch-Site) or that came by another name (Host: a name on
the internet may be made to point here). Recordings are named by number, so no path from outside is ever opened.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from mast_ray.config.errors import MastError
from mast_ray.recordings.decoding.faults import UnreadableRecording
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ, NUM_BINS, hertz_to_bin
from mast_ray.stages.review.asked import AskedQueues
from mast_ray.stages.review.first_page import with_first_answers
from mast_ray.stages.review.pictures import LONGEST_S, WindowPictures

log = logging.getLogger("mast.review")
T = TypeVar("T")
HERE = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MOST_BODY_BYTES = 1 << 20
MEL_STEPS = 512  # of the table that turns hertz into bins in the page
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ACTIONS = ("accept", "reject", "change", "draw", "name", "looked")


class ReviewServer:
    """Handlers of one review. Decoding and drawing happen in threads, so that keys are answered meanwhile."""

    def __init__(self, asked: AskedQueues, pictures: WindowPictures, title: str, token: str = "") -> None:
        self.asked, self.session, self.pictures, self.title = asked, asked.session, pictures, title
        self.token = token or secrets.token_urlsafe(24)
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="review")
        self._files = {path.name: path for path in PAGE.iterdir() if path.suffix in KINDS}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BODY_BYTES)
        at = "/{token}/"
        app.add_routes([
            web.get(at, self._page), web.get(at + "page/{name}", self._page),
            web.get(at + "run", self._run), web.get(at + "figures", self._figures),
            web.get(at + "queue", self._queue), web.get(at + "next", self._next),
            web.get(at + "cells", self._cells), web.get(at + "members", self._members),
            web.get(at + "boxes", self._boxes), web.get(at + "picture", self._picture),
            web.get(at + "sound", self._sound), web.post(at + "act", self._act),
            web.post(at + "undo", partial(self._take_back, "undo")),
            web.post(at + "redo", partial(self._take_back, "redo")),
        ])  # fmt: skip
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse strangers; turn errors into sentences; add the headers that keep the page to itself."""
        if not self._is_own(request):
            answer: web.StreamResponse = web.Response(
                status=403, text="403: open the address that mast review printed"
            )
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=error.reason)
            except (MastError, UnreadableRecording, ValueError, OverflowError) as error:
                answer = web.json_response({"error": str(error)}, status=400)
            except OSError as error:
                log.error("%s", error)
                answer = web.json_response({"error": f"not done: {error.strerror or error}"}, status=500)
        answer.headers.update({
            "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin", "X-Frame-Options": "DENY",
        })  # fmt: skip
        answer.headers.setdefault("Cache-Control", "no-store")
        return answer

    def _is_own(self, request: web.Request) -> bool:
        port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
        hosts = {f"{HERE}:{port}", f"localhost:{port}"}
        if request.headers.get("Host") not in hosts or len(request.headers.getall("Host")) != 1:
            return False
        origin = request.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return False
        first, _, rest = request.path.removeprefix("/").partition("/")
        is_opening = rest == "" and request.method == "GET"  # a link in a mail or a terminal may lead here
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not is_opening:
            return False
        return secrets.compare_digest(first.encode(), self.token.encode())

    async def _here(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # ---- the page and what it asks

    async def _page(self, request: web.Request) -> web.Response:
        path = self._files.get(request.match_info.get("name", "review.html"))
        if path is None:
            raise web.HTTPNotFound()
        if path.name == "review.html":
            text = await self._here(partial(with_first_answers, path.read_text("utf-8"), self.asked))
            return web.Response(text=text, content_type="text/html", charset="utf-8")
        return web.Response(body=path.read_bytes(), content_type=KINDS[path.suffix], charset="utf-8")

    async def _run(self, request: web.Request) -> web.Response:
        found = self.session.found
        hertz = [LOW_HZ + (HIGH_HZ - LOW_HZ) * step / (MEL_STEPS - 1) for step in range(MEL_STEPS)]
        return _json({
            "title": self.title, "reviewer": self.session.reviewer, "threshold": found.threshold,
            "queues": self.asked.available(), "problems": self.session.problems,
            "recordings": [[r.path, r.site, r.duration_s, r.when] for r in found.recordings],
            "names": await self._here(self.session.names),
            "hertz": hertz, "bins": [float(hertz_to_bin(value)) / NUM_BINS for value in hertz],
        })  # fmt: skip

    async def _figures(self, request: web.Request) -> web.Response:
        return _json(await self._here(self.session.figures))

    async def _queue(self, request: web.Request) -> web.Response:
        first, count = _whole(request, "first"), _whole(request, "count")
        if first < 0:
            raise ValueError("first is below 0")
        work = partial(self.asked.items, _text(request, "name"), _whole(request, "part"), first, count)
        return _json(await self._here(work))

    async def _next(self, request: web.Request) -> web.Response:
        work = partial(
            self.asked.next_open, _text(request, "name"), _whole(request, "part"), _whole(request, "after")
        )
        return _json({"index": await self._here(work)})

    async def _cells(self, request: web.Request) -> web.Response:
        return _json(await self._here(self.asked.cells_json))

    async def _members(self, request: web.Request) -> web.Response:
        return _json(await self._here(partial(self.asked.members, _whole(request, "number"))))

    async def _boxes(self, request: web.Request) -> web.Response:
        recording, begin_s, seconds = self._window(request)
        boxes = self.session.boxes_within(recording, begin_s, begin_s + seconds)
        spans = [[s.begin_s, s.end_s] for s in self.session.spans_of(recording)]
        return _json({"boxes": boxes, "spans": spans})

    async def _picture(self, request: web.Request) -> web.Response:
        recording, begin_s, seconds = self._window(request)
        path = self.session.found.recordings[recording].path
        body = await self._here(partial(self.pictures.picture, path, begin_s, seconds))
        return web.Response(
            body=body, content_type="image/webp", headers={"Cache-Control": "private, max-age=600"}
        )

    async def _sound(self, request: web.Request) -> web.Response:
        recording, begin_s, seconds = self._window(request)
        band = None
        if "low_hz" in request.query:
            band = _number(request, "low_hz"), _number(request, "high_hz")
        path = self.session.found.recordings[recording].path
        body = await self._here(partial(self.pictures.sound, path, begin_s, begin_s + seconds, band))
        return web.Response(
            body=body, content_type="audio/wav", headers={"Cache-Control": "private, max-age=600"}
        )

    def _window(self, request: web.Request) -> tuple[int, float, float]:
        """Number of a recording, first second and seconds, all of them possible."""
        recording, begin_s, seconds = (
            _whole(request, "recording"),
            _number(request, "begin_s"),
            _number(request, "seconds"),
        )
        if not 0 <= recording < len(self.session.found.recordings):
            raise ValueError(f"there is no recording number {recording}")
        if not (begin_s >= 0.0 and 0.0 < seconds <= LONGEST_S):
            raise ValueError(f"{seconds:g} s from {begin_s:g} s cannot be shown")
        return recording, begin_s, seconds

    # ---- what the page does

    async def _act(self, request: web.Request) -> web.Response:
        body = await _body(request)
        kind, ids, corners = body.get("action"), body.get("boxes", []), body.get("corners")
        label, queue, recording = body.get("label"), body.get("queue", "recording"), body.get("recording", -1)
        if kind not in ACTIONS or not isinstance(queue, str) or type(recording) is not int:
            raise ValueError("an action that is not known")
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise ValueError("boxes are not a list of names")
        if corners is not None and not (
            isinstance(corners, list) and len(corners) == 4 and all(type(c) in (int, float) for c in corners)
        ):
            raise ValueError("corners are not four numbers")
        if not isinstance(label, str | None):
            raise ValueError("a name is not a text")
        begin_s, low_hz, end_s, high_hz = map(float, corners or (0.0,) * 4)
        place = None if corners is None else (begin_s, low_hz, end_s, high_hz)
        work = partial(self.session.act, kind, queue, ids, recording, place, label)
        return _json({"changed": await self._here(work)})

    async def _take_back(self, which: str, request: web.Request) -> web.Response:
        await _body(request)
        return _json({"changed": await self._here(getattr(self.session, which))})


async def _body(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request; a form of another page cannot send this type."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType()
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:  # brackets in brackets, thousands deep
        raise ValueError("not JSON") from error
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _json(value: Any) -> web.Response:
    return web.json_response(text=json.dumps(value, allow_nan=False, separators=(",", ":")))


def _text(request: web.Request, name: str) -> str:
    return request.query.get(name, "")


def _whole(request: web.Request, name: str) -> int:
    try:
        return int(request.query.get(name, "0"))
    except ValueError:
        raise ValueError(f"{name} is not a whole number") from None


def _number(request: web.Request, name: str) -> float:
    try:
        return float(request.query.get(name, "nan"))
    except ValueError:
        raise ValueError(f"{name} is not a number") from None


async def serve(server: ReviewServer, port: int, told: Callable[[str], None]) -> None:
    """Serve until cancelled; `told` hears the address once it answers."""
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HERE, port)
        await site.start()
        told(f"http://{HERE}:{runner.addresses[0][1]}/{server.token}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
