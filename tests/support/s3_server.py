"""A real S3 server on loopback (SeaweedFS) and a proxy in front of it that injects faults."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

ACCESS_KEY, SECRET_KEY = "mast-test-key", "mast-test-secret"
FAULTS = ("500", "503", "reset", "lost_answer", "half_body")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def weed_program() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def s3_server(folder: Path):
    """Endpoint of a fresh server; its processes end with the block."""
    ports = {}
    while len({*ports.values(), *(p + 10000 for p in ports.values())}) < 8:
        ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
        if max(ports.values()) > 55000:
            ports = {}
    identities = [{
        "name": "test", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }]  # fmt: skip
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    data = folder / "weed"
    data.mkdir()
    command = [
        weed_program(), "server", "-dir", str(data), "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-s3",
        f"-s3.port={ports['s3']}", f"-s3.config={config}", f"-master.port={ports['master']}",
        f"-volume.port={ports['volume']}", f"-filer.port={ports['filer']}", "-master.volumeSizeLimitMB=256",
        "-volume.max=100", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    log = open(folder / "weed.log", "wb")  # noqa: SIM115
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    try:
        _wait_until_up(endpoint, server)
        yield endpoint
    finally:
        server.kill()  # its data is thrown away; a gentle stop takes ten seconds
        server.wait()
        log.close()


def client_of(endpoint: str):
    import botocore.session

    session = botocore.session.get_session()
    return session.create_client(
        "s3", endpoint_url=endpoint, region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
    )  # fmt: skip


def _wait_until_up(endpoint: str, server: subprocess.Popen, limit_s: float = 60.0) -> None:
    client, until_s = client_of(endpoint), time.monotonic() + limit_s
    while True:
        try:
            client.create_bucket(Bucket="probe")
            client.put_object(Bucket="probe", Key="x", Body=b"x")
            return
        except Exception:
            if server.poll() is not None or time.monotonic() > until_s:
                raise
            threading.Event().wait(0.2)


def use_credentials(monkeypatch) -> None:
    """What a user's environment would hold."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def environment() -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }  # fmt: skip


class FaultProxy:
    """Reverse proxy: a share of requests fails in one of five ways; other faults
    are switched on by attribute.
    """

    def __init__(self, target: str, share: float = 0.0, seed: int = 0) -> None:
        self.target, self.share = target, share
        self.slow_share, self.slow_s = 0.0, 5.0
        self.hang_share = 0.0
        self.expired_requests = 0  # so many requests more are answered 403 ExpiredToken
        self.always_503 = False
        self.refusals: dict[str, str] = {}  # requests whose address holds this are refused with that code
        self.reads_left: dict[str, int] = {}  # of objects whose address holds this; then access is denied
        self.ignores_conditions = False  # like a store that does not know If-None-Match
        self.counts: dict[str, int] = {}
        self._random = random.Random(seed)
        self.port = free_port()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            auto_decompress=False, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        )
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, shutdown_timeout=0.5).start()
        self._ready.set()
        await self._stop.wait()
        await self._session.close()
        await runner.cleanup()

    def _choice(self) -> str:
        if self.always_503:
            return "503"
        if self.expired_requests > 0:
            self.expired_requests -= 1
            return "expired"
        draw = self._random.random()
        if draw < self.share:
            return self._random.choice(FAULTS)
        if draw < self.share + self.slow_share:
            return "slow"
        return "hang" if draw < self.share + self.slow_share + self.hang_share else "none"

    def _delete(self, path: str) -> None:
        bucket, _, key = path.strip("/").partition("/")
        client_of(self.target).delete_object(Bucket=bucket, Key=key)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = self._choice()
        self.counts[fault] = self.counts.get(fault, 0) + 1
        body = await request.read()
        for part, code in self.refusals.items():
            if part in request.raw_path:
                return web.Response(status=403, body=_error(code), content_type="application/xml")
        for part in self.reads_left:
            if part in request.raw_path:
                self.reads_left[part] -= 1
                if self.reads_left[part] < 0:
                    return web.Response(
                        status=403, body=_error("AccessDenied"), content_type="application/xml"
                    )
        match fault:
            case "500" | "503":
                name = {"500": "InternalError", "503": "SlowDown"}[fault]
                return web.Response(status=int(fault), body=_error(name), content_type="application/xml")
            case "expired":
                return web.Response(status=403, body=_error("ExpiredToken"), content_type="application/xml")
            case "reset":
                request.transport.abort()
                return web.Response()
            case "slow":
                await asyncio.sleep(self.slow_s)
            case "hang":
                await asyncio.sleep(3600)
        if self.ignores_conditions and "If-None-Match" in request.headers:
            await asyncio.to_thread(self._delete, request.path)  # the condition is signed: it is made true
        skipped = {"transfer-encoding", "content-length", "connection", "expect"}
        headers = {k: v for k, v in request.headers.items() if k.lower() not in skipped}
        url = self.target + request.raw_path
        from yarl import URL

        async with self._session.request(
            request.method, URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
        ) as answer:
            content = await answer.read()
            if fault == "lost_answer":
                request.transport.abort()
                return web.Response()
            out = {k: v for k, v in answer.headers.items() if k.lower() not in skipped}
            if request.method == "HEAD":
                response = web.StreamResponse(status=answer.status, headers=out)
                response.content_length = int(answer.headers.get("Content-Length", 0))
                await response.prepare(request)
                return response
            if fault == "half_body" and len(content) > 1:
                response = web.StreamResponse(status=answer.status, headers=out)
                response.content_length = len(content)
                await response.prepare(request)
                await response.write(content[: len(content) // 2])
                await asyncio.sleep(0.01)
                request.transport.abort()
                return response
            return web.Response(status=answer.status, headers=out, body=content)


def _error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
