"""Faults drawn by a seed over every stage of a tiny pipeline, in a folder or in a bucket; what the stages leave in the end."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from s3_server import FaultProxy, environment
from small_archive import small_config, write_sound

from mast_ray.config.loading import config_to_yaml
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.storage import Storage, open_storage

REPOSITORY = Path(__file__).resolve().parents[2]
KNOBS = {
    "pretrain.epochs": 1,
    "detector.epochs": 1, "self_train.policy": "fixed", "self_train.threshold": 0.01,
    "self_train.governor": "warn", "self_train.rounds": 1, "self_train.stage1.batch_size": 4,
    "self_train.stage1.max_steps": 2, "self_train.stage2.batch_size": 4, "self_train.stage2.max_steps": 2,
    "evaluate.max_detections": 20, "evaluate.bootstrap": 20, "cluster.checkpoint_every_steps": 1,
}  # fmt: skip
RAY_TAKES = 2.5  # times as long as one process, at the least: Ray's processes start first
# Where a stage may end after a fault: what it did anyway, or one that says run it again. 3 is an input that is away.
ENDINGS = {"kill_driver": {-9}, "terminate": {130}, "full_disk": {75}, "vanish": {3, 75}, "outage": {75},
           "kill_raylet": {75}, "kill_worker": set(), "expire": set(), "none": set()}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One verb; `{name}` in its arguments is a place of the pipeline, `reads` the folder that may vanish."""

    verb: str
    arguments: str
    reads: str


STAGES = (
    Stage("prepare", "{archive} --annotations {labels.csv} --out {prepared}", "archive"),
    Stage("pretrain", "{prepared} --out {encoder}", "prepared"),
    Stage("train", "{prepared} --encoder {encoder} --out {detector}", "prepared"),
    Stage("pseudo-label", "{detector} {prepared} --out {pseudo}", "prepared"),
    Stage("self-train", "{prepared} --detector {detector} --out {student}", "prepared"),
    Stage("detect", "{detector} {archive} --out {detections} --threshold 0.01", "archive"),
    Stage("evaluate", "{detector} {prepared} --out {scores} --threshold 0.01", "prepared"),
)


@dataclass
class Pipeline:
    """The stages over one place: `root` is a folder or s3://BUCKET, `here` a folder for notes."""

    root: str
    here: Path
    runners: dict[str, str]
    proxy: FaultProxy | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    happened: list[dict] = field(default_factory=list)

    @property
    def knobs(self) -> dict[str, object]:
        if self.proxy is None:
            return dict(KNOBS)
        named = {"endpoint_url": self.proxy.endpoint, "region": "us-east-1", "io_deadline_s": 15.0,
                 "request_timeout_s": 5.0}  # fmt: skip
        return KNOBS | {f"storage.{name}": value for name, value in named.items()}

    def storage(self) -> Storage:
        settings = StorageConfig()
        if self.proxy is not None:
            settings = StorageConfig(endpoint_url=self.proxy.target, region="us-east-1")
        return open_storage(self.root, settings)

    def start(self, stage: Stage) -> subprocess.Popen:
        config = self.here / "config.yaml"
        config.write_text(config_to_yaml(small_config(**self.knobs)))
        words = [
            part.strip("{}") if part[0] != "{" else f"{self.root}/{part[1:-1]}"
            for part in stage.arguments.split()
        ]
        command = [sys.executable, "-m", "mast_ray", stage.verb, *words, "--config", str(config)]
        variables = os.environ | environment() | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        variables.pop("RAY_ADDRESS", None)
        with open(self.here / "said.txt", "w") as said:
            return subprocess.Popen(
                [*command, "--runner", self.runners[stage.verb]],
                env=variables,
                stdout=said,
                stderr=said,
                cwd=self.here,
            )

    def run(
        self, stage: Stage, fault: str = "none", after_s: float = 0.0, trouble: Callable | None = None
    ) -> int:
        """One attempt; its exit code must be one that the fault explains, and no traceback is shown."""
        began_s = time.monotonic()
        driver = self.start(stage)
        try:
            if trouble is not None:
                with suppress(subprocess.TimeoutExpired):
                    driver.wait(after_s)
                if driver.poll() is None:
                    trouble(driver)
                else:
                    fault = "none"  # it was done before anything went wrong
            code = driver.wait(240)
        finally:
            if driver.poll() is None:
                driver.kill()
        took_s = time.monotonic() - began_s
        said = (self.here / "said.txt").read_text()
        self.happened.append({"place": "folder" if self.proxy is None else "bucket", "verb": stage.verb, "fault": fault,
                              "after_s": round(after_s, 1), "code": code, "took_s": round(took_s, 1)})  # fmt: skip
        assert code in {0} | ENDINGS[fault], f"{self.happened[-1]}\n{said[-3000:]}"
        if code in (3, 75):  # what Ray says of a busy machine may stand before it
            about = said[said.rindex("error: ") :].strip().splitlines()
            assert len(about) <= 3, f"{self.happened[-1]}\n{said[-3000:]}"
        if fault == "none":
            self.seconds[stage.verb] = took_s
        return code


class Chaos:
    """Draws what goes wrong, and makes it go wrong."""

    def __init__(self, seed: int, pipeline: Pipeline, can_fill: bool) -> None:
        self.random, self.pipeline = random.Random(seed), pipeline
        self.kinds = ["kill_driver", "terminate", "kill_worker", "kill_raylet"]
        if pipeline.proxy is not None:
            self.kinds += ["outage", "expire"]
        else:
            self.kinds += ["vanish"] + (["full_disk"] if can_fill else [])

    def disturb(self, stage: Stage, times: int, expected_s: float) -> None:
        """Run a stage through so many faults, then until it is done; `expected_s` is what it takes in one process."""
        if self.pipeline.runners[stage.verb] == "ray":
            expected_s *= RAY_TAKES
        code = None
        for _ in range(times):
            fault = self._draw(stage)
            after_s = expected_s * self.random.uniform(0.3, 0.95)
            code = self.pipeline.run(
                stage, fault, after_s, lambda driver, name=fault: getattr(self, name)(driver, stage)
            )
        assert code == 0 or self.pipeline.run(stage) == 0

    def _draw(self, stage: Stage) -> str:
        kinds = self.kinds
        if self.pipeline.runners[stage.verb] == "here":
            kinds = [kind for kind in kinds if kind not in ("kill_worker", "kill_raylet")]
        return self.random.choice(kinds)

    def kill_driver(self, driver: subprocess.Popen, stage: Stage) -> None:
        driver.kill()

    def terminate(self, driver: subprocess.Popen, stage: Stage) -> None:
        driver.terminate()
        driver.wait(30)

    def kill_worker(self, driver: subprocess.Popen, stage: Stage) -> None:
        self._kill_one(driver, lambda line: line.startswith("ray::") and "IDLE" not in line)

    def kill_raylet(self, driver: subprocess.Popen, stage: Stage) -> None:
        self._kill_one(driver, lambda line: "raylet/raylet" in line.partition(" ")[0])

    def _kill_one(self, driver: subprocess.Popen, is_meant: Callable[[str], bool]) -> None:
        """As soon as there is one to be killed."""
        while driver.poll() is None:
            found = []
            with suppress(psutil.Error):
                for process in psutil.Process(driver.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        if is_meant(" ".join(process.cmdline())):
                            found.append(process)
            if found:
                with suppress(psutil.Error):
                    self.random.choice(found).kill()
                return
            threading.Event().wait(0.1)

    def full_disk(self, driver: subprocess.Popen, stage: Stage) -> None:
        """Every byte of the disk is taken, until the run has noticed or five seconds are over."""
        ballast = Path(self.pipeline.root) / "ballast"
        with open(ballast, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        with suppress(subprocess.TimeoutExpired):
            driver.wait(5)
        ballast.unlink()

    def vanish(self, driver: subprocess.Popen, stage: Stage) -> None:
        """What is read is away for some seconds, as a disk is that is taken off and put on again."""
        folder, elsewhere = (Path(self.pipeline.root) / name for name in (stage.reads, "elsewhere"))
        folder.rename(elsewhere)
        with suppress(subprocess.TimeoutExpired):
            driver.wait(self.random.uniform(1.0, 6.0))
        elsewhere.rename(folder)

    def outage(self, driver: subprocess.Popen, stage: Stage) -> None:
        """The store answers 503 to everything, for less or for more than the deadline."""
        proxy = self.pipeline.proxy
        proxy.always_503 = True
        with suppress(subprocess.TimeoutExpired):
            driver.wait(self.random.choice((4.0, 40.0)))
        proxy.always_503 = False

    def expire(self, driver: subprocess.Popen, stage: Stage) -> None:
        self.pipeline.proxy.expired_requests = self.random.randint(1, 2)


def write_inputs(storage: Storage, scratch: Path) -> None:
    """Archive and labels of the pipeline."""
    write_sound(scratch, num_recordings=6, seconds=12)
    for file in sorted(path for path in scratch.rglob("*") if path.is_file()):
        storage.write_atomic(file.relative_to(scratch).as_posix(), file.read_bytes())


@contextmanager
def small_disk(folder: Path, megabytes: int = 256):
    """Whether a disk of its own could be mounted on a folder (that takes rights); gone after the block."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", str(folder)]
    is_mounted = False
    with suppress(OSError):
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            for _ in range(50):  # processes of a killed cluster may still be on their way out
                if subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0:
                    break
                threading.Event().wait(0.2)


def left_by(storage: Storage) -> dict[str, str]:
    """Hash of every table, of every weight and of all figures; names of files that hold rows may differ."""
    found = {}
    for name in ("recordings", "labels", "splits", "rejects", "index", "backgrounds"):
        found[name] = _hash(_rows(storage, f"prepared/{name}.parquet"))
    for place in (
        "prepared/frames/",
        "detections/detections/",
        "detections/recordings.parquet",
        "pseudo/detections/",
    ):
        found[place] = _hash(_rows(storage, place))
    names = ["stats.json"]
    found |= {name: _hash(storage.read_bytes(f"prepared/{name}")) for name in names}
    models = ("encoder", "detector", "student/model", "student/round1/stage1", "student/round1/stage2")
    found |= {f"{name}: weights": _hash(storage.read_bytes(f"{name}/weights.safetensors")) for name in models}
    for name in ("pseudo_labels", "pseudo_chunks"):
        found[f"student: {name}"] = _hash(_rows(storage, f"student/round1/pseudo/{name}.parquet"))
    found["student: rounds"] = _hash(storage.read_bytes("student/rounds.json"))
    scores = storage.read_bytes("scores/metrics.json").replace(
        storage.url.encode(), b""
    )  # it names what was scored
    found["scores"] = _hash(scores)
    return found


def _rows(storage: Storage, prefix: str) -> bytes:
    """Every row of the tables below a prefix, in an order of its own."""
    keys = (
        [prefix]
        if prefix.endswith(".parquet")
        else [e.key for e in storage.list(prefix) if e.key.endswith(".parquet")]
    )
    tables = [pq.read_table(pa.BufferReader(storage.read_bytes(key))) for key in keys]
    rows = [json.dumps(row, default=str, sort_keys=True) for table in tables for row in table.to_pylist()]
    return "\n".join(sorted(rows)).encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
