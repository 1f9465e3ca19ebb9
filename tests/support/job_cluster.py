"""A Ray cluster of two raylets on this machine with token authentication, as `ray start`
makes it, and jobs submitted to it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from s3_server import free_port

REPOSITORY = Path(__file__).resolve().parent.parent.parent


class JobCluster:
    """Ports, token and processes of its own; `worker` is the second raylet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.dashboard_port = free_port(), free_port()
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.env = os.environ | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        self.env.pop("RAY_ADDRESS", None)
        self.head = self._start(
            "--head", f"--port={self.port}", "--num-cpus=2", "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.dashboard_port}", f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}/ray",
        )  # fmt: skip
        self._wait_for_agent()
        self.worker = self._start(f"--address=127.0.0.1:{self.port}", "--num-cpus=1")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def _start(self, *options: str) -> subprocess.Popen:
        common = (
            "--block",
            f"--dashboard-agent-listen-port={free_port()}",
            "--object-store-memory=100000000",
        )
        log = open(self.folder / f"start-{len(options)}.log", "wb")  # noqa: SIM115
        command = ["ray", "start", *options, *common]
        return subprocess.Popen(
            command, env=self.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def _wait_for_agent(self, limit_s: float = 120.0) -> None:
        """Until the job server answers; it says 500 for a while after the start."""
        until_s = time.monotonic() + limit_s
        while self.ray("job", "list", "--address", self.url).returncode != 0:
            assert self.head.poll() is None, (self.folder / "start-7.log").read_text()
            assert time.monotonic() < until_s, "no job server"
            threading.Event().wait(1.0)

    def ray(self, *arguments: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess:
        command = ["ray", *arguments]
        return subprocess.run(
            command, env=self.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s
        )

    def submit(self, *entrypoint: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
        """`ray job submit ... -- python jobs/X.py ...`, from the checkout."""
        common = ("--address", self.url, "--working-dir", ".", "--runtime-env", "runtime_env.yaml")
        return self.ray("job", "submit", *common, *options, "--", "python", *entrypoint)

    def status_without_token(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.url}/api/jobs/", timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def kill_worker(self) -> None:
        _kill_group(self.worker)

    def stop(self) -> None:
        for process in (self.worker, self.head):
            _kill_group(process)


def _kill_group(process: subprocess.Popen) -> None:
    """The processes of one `ray start`, and no others."""
    for pid in [*_descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _descendants(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def job_cluster():
    folder = Path(tempfile.mkdtemp(prefix="mj"))  # short: socket names have a limit of 107 characters
    cluster = JobCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
