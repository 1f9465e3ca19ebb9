"""A headless Chromium driven through its own DevTools protocol: pages, keys,
screenshots, and a record of every request.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp


def chromium_path() -> str | None:
    """The browser to use (MAST_CHROMIUM, or what is installed)."""
    names = (os.environ.get("MAST_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Browser:
    """One page. `requests` holds every address asked for, `complaints` every
    console error, exception and dialog.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._waiting, self._number = socket, {}, 0
        self._expected: list[tuple[str, Callable[[dict], bool], asyncio.Future]] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                self._waiting.pop(data["id"]).set_result(data)
                continue
            match data["method"], data["params"]:
                case "Network.requestWillBeSent", event:
                    self.requests.append(event["request"]["url"][:200])
                case "Runtime.exceptionThrown", event:
                    self.complaints.append(json.dumps(event["exceptionDetails"])[:500])
                case "Runtime.consoleAPICalled", event if event["type"] in ("error", "warning", "assert"):
                    self.complaints.append(json.dumps(event["args"])[:500])
                case "Log.entryAdded", event if event["entry"]["level"] in ("error", "warning"):
                    self.complaints.append(event["entry"]["text"][:500])
                case "Page.javascriptDialogOpening", event:
                    self.complaints.append("dialog: " + event["message"])
            for name, accepts, future in self._expected:
                if name == data["method"] and not future.done() and accepts(data["params"]):
                    future.set_result(data["params"])

    async def call(self, method: str, **params: object) -> dict:
        self._number += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answer
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        data = await asyncio.wait_for(answer, 60)
        if "error" in data:
            raise RuntimeError(f"{method}: {data['error']}")
        return data["result"]

    def expect(self, event: str, accepts: Callable[[dict], bool] = lambda params: True) -> Awaitable[dict]:
        """Awaitable for an event that the next action causes: call this first, then act, then await."""
        future = asyncio.get_running_loop().create_future()
        self._expected.append((event, accepts, future))
        return asyncio.wait_for(future, 60)

    async def open(self, place: Path | str, width: int, height: int, phone: bool = False) -> None:
        """A file or an address in a window of a size."""
        for domain in ("Network", "Runtime", "Log", "Page"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        loaded = self.expect("Page.loadEventFired")
        await self.call("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        await loaded

    async def value(self, expression: str) -> object:
        """Value of a JavaScript expression; promises are awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    async def press(self, key: str, shift: bool = False, alt: bool = False) -> None:
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text if kind == "keyDown" else "",
                modifiers=8 * shift + alt,
            )

    async def screenshot(self, path: Path, whole: bool = False) -> None:
        data = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))


@contextlib.asynccontextmanager
async def browser(folder: Path):
    """A fresh browser that reaches this computer only; it is closed afterwards. `folder`
    holds its profile and downloads.
    """
    path = chromium_path()
    assert path is not None
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--hide-scrollbars",
             f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--autoplay-policy=no-user-gesture-required", "--disable-dev-shm-usage"]  # fmt: skip
    process = subprocess.Popen([path, *flags, "about:blank"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        loop = asyncio.get_running_loop()
        while "DevTools listening on" not in (
            line := await loop.run_in_executor(None, process.stderr.readline)
        ):
            assert line, "the browser ended before it listened"
        port = line.split("127.0.0.1:")[1].split("/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Browser(socket)
    finally:
        process.terminate()
        process.wait(20)
