"""Twelve ways in which the code was once broken by hand, tried by its commands alone, with several versions of it.

    git worktree add --detach /tmp/old COMMIT
    python benchmarks/broken_by_hand.py --code old=/tmp/old --code new=. [--line 5] [--out JSON]

Every line is a few commands over small recordings of noise and a tiny detector with fresh weights; it holds or not, by exit codes
and by what is on disk in the end. Two lines need a disk that fails: a `sitecustomize.py` on the path of the process stands for it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import soundfile
from s3_end_to_end import write_model

RATE_HZ = 16_000
# While a file $BROKEN_DISK is there: opening names with its content fails (EIO), and no file gets its final name (ENOSPC).
FAILING_DISK = """
import builtins, errno, os
plain_open, plain_replace, plain_link = builtins.open, os.replace, os.link
def broken():
    try:
        with plain_open(os.environ["BROKEN_DISK"]) as file:
            return file.read()
    except OSError:
        return ""
def open_(file, *rest, **options):
    name = broken()
    if name and name != "full" and str(file).endswith(name):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
    return plain_open(file, *rest, **options)
def full(plain):
    def moved(source, target, *rest, **options):
        if broken() == "full" and "/out/" in str(target) and "/frames/" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return plain(source, target, *rest, **options)
    return moved
builtins.open, os.replace, os.link = open_, full(plain_replace), full(plain_link)
"""


@dataclass
class Said:
    """How a command ended."""

    code: int
    text: str
    seconds: float


@dataclass
class Bench:
    """One version of the code in a folder of its own."""

    code: Path
    folder: Path

    def start(self, *argv: str) -> subprocess.Popen:
        site = self.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(FAILING_DISK)
        variables = {"PYTHONPATH": f"{site}{os.pathsep}{self.code}", "BROKEN_DISK": str(self.folder / "broken"),
                     "OMP_NUM_THREADS": "1"}  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "mast_ray", *argv], env=os.environ | variables, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd=self.folder,
        )  # fmt: skip

    def mast(self, *argv: str, limit_s: float = 240.0) -> Said:
        began_s = time.monotonic()
        process = self.start(*argv)
        try:
            text = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            text = process.communicate()[0] + f"\nstill running after {limit_s:.0f} s"
        return Said(process.returncode, text, time.monotonic() - began_s)

    def prepare(self, archive: str = "audio", runner: str = "here") -> Said:
        return self.mast("prepare", archive, "--out", "out", "--runner", runner)

    def detect(self, archive: str, model: str = "model") -> Said:
        return self.mast("detect", model, archive, "--out", "found", "--runner", "here", "--threshold", "0")

    def sound(self, *names: str, seconds: float = 12.0) -> None:
        for number, name in enumerate(names):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(number).standard_normal(int(seconds * RATE_HZ)) * 0.05
            soundfile.write(path, noise, RATE_HZ, "PCM_16")

    def hours(self, root: str, site: str, count: int) -> list[str]:
        names = [f"{root}/{site}/{site}_20240501_{hour:02d}0000.wav" for hour in range(count)]
        self.sound(*names)
        return names

    def rows(self, table: str) -> list[dict]:
        path = self.folder / table
        return pq.read_table(path).to_pylist() if path.exists() else []

    def model(self) -> Path:
        return write_model(self.code, self.folder / "model")


def tidy(said: Said, code: int) -> bool:
    """The right code, and no traceback."""
    return said.code == code and "Traceback" not in said.text


def second_archive(bench: Bench) -> bool:
    bench.model()
    bench.hours("first", "A", 3)
    bench.hours("second", "B", 2)
    bench.detect("first")
    bench.detect("second")
    kept = {row["site"] for path in (bench.folder / "found").rglob("*.parquet") for row in pq.read_table(path).to_pylist()
            if "site" in row}  # fmt: skip
    return {"A", "B"} <= kept


def passing_read_error(bench: Bench) -> bool:
    names = bench.hours("audio", "A", 6)
    (bench.folder / "broken").write_text(Path(names[2]).name)
    bench.prepare()
    (bench.folder / "broken").unlink()
    return bench.prepare().code == 0 and len(bench.rows("out/recordings.parquet")) == 6


def deaths_of_drivers(bench: Bench) -> bool:
    bench.hours("audio", "A", 4)
    for _ in range(14):
        driver = bench.start("prepare", "audio", "--out", "out", "--runner", "here")
        before = set((bench.folder / "out").rglob("attempts/*/*"))
        while driver.poll() is None and not set((bench.folder / "out").rglob("attempts/*/*")) - before:
            time.sleep(0.01)
        driver.send_signal(signal.SIGKILL)
        driver.wait()  # not for its output: a process it has started may hold that
    return bench.prepare().code == 0 and len(bench.rows("out/recordings.parquet")) == 4


def one_entry(bench: Bench) -> bool:
    bench.hours("audio", "A", 3)
    (bench.folder / "audio/A/loop.wav").symlink_to("loop.wav")
    (bench.folder / "audio/A/annex.wav").symlink_to("nowhere")
    said = bench.prepare()
    return tidy(said, 4) and len(bench.rows("out/rejects.parquet")) == 2


def damaged_output(bench: Bench) -> bool:
    bench.hours("audio", "A", 3)
    bench.prepare()
    for file in (bench.folder / "out/frames").iterdir():
        file.unlink()
    bench.prepare()
    return any((bench.folder / "out/frames").iterdir())


def names_in_any_script(bench: Bench) -> bool:
    bench.model()
    site = "ป่าดิบชื้นอุทยานแห่งชาติเขาใหญ่นครราชสีมา" * 2
    bench.sound(f"audio/{site[:80]}/20240501_060000.wav")
    said = bench.detect("audio")
    return said.code == 0 and [row["site"] for row in bench.rows("found/recordings.parquet")] == [site[:80]]


def full_disk_on_ray(bench: Bench) -> bool:
    bench.hours("audio", "A", 3)
    (bench.folder / "broken").write_text("full")
    said = bench.prepare(runner="ray")
    about = said.text[said.text.find("error: ") :].strip().splitlines()
    return tidy(said, 75) and len(about) <= 3


def exit_codes(bench: Bench) -> bool:
    bench.hours("audio", "A", 2)
    (bench.folder / "audio/A/A_20240502_000000.wav").write_bytes(b"RIFF nothing")
    return (bench.prepare().code, bench.prepare().code) == (4, 4)


def weights_that_are_not_numbers(bench: Bench) -> bool:
    import hashlib

    from safetensors.numpy import load_file, save_file

    model = bench.model()
    weights = load_file(model / "weights.safetensors")
    spoilt = {n: np.full_like(v, np.nan) if v.dtype.kind == "f" else v for n, v in weights.items()}
    save_file(spoilt, model / "weights.safetensors")
    card = json.loads((model / "card.json").read_text())
    card["weights_sha256"] = hashlib.sha256((model / "weights.safetensors").read_bytes()).hexdigest()
    (model / "card.json").write_text(json.dumps(card))
    bench.hours("audio", "A", 1)
    return tidy(bench.detect("audio"), 3)


def secrets_in_addresses(bench: Bench) -> bool:
    said = bench.mast("prepare", "s3://AKIAKEY:HUSHHUSH@bucket/x", "--out", "out", "--runner", "here")
    return said.code != 0 and "HUSHHUSH" not in said.text


def implausible_clocks(bench: Bench) -> bool:
    bench.sound("audio/S/deadbeef.wav", "audio/S/99999999.wav")
    bench.prepare()
    starts = [
        str(row.get("start_utc") or row.get("start_local") or "")
        for row in bench.rows("out/recordings.parquet")
    ]
    return len(starts) == 2 and not any(start[:4] in ("2088", "2051") for start in starts)


def yaml_bomb(bench: Bench) -> bool:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 8)]
    (bench.folder / "bomb.yaml").write_text("\n".join(lines))
    said = bench.mast("config", "--config", "bomb.yaml", limit_s=30.0)
    return tidy(said, 2) and len(said.text.strip().splitlines()) <= 3


LINES: dict[int, tuple[str, Callable[[Bench], bool]]] = {
    1: ("a second archive into one --out of detect keeps the first one's detections", second_archive),
    2: ("a read error that passes is tried again by the next run", passing_read_error),
    3: ("fourteen kills of the driver in one unit blame no good recording", deaths_of_drivers),
    4: ("links to themselves and to nowhere are rejects", one_entry),
    5: ("deleted frames are made again", damaged_output),
    6: ("a Thai site name of 80 letters goes through detect and reads back the same", names_in_any_script),
    7: ("a full disk met by a worker on Ray: 75 and three lines", full_disk_on_ray),
    8: ("prepare run again after 4 says 4", exit_codes),
    9: ("weights that are not numbers are refused", weights_that_are_not_numbers),
    10: ("keys inside an address are not printed", secrets_in_addresses),
    11: ("deadbeef.wav and 99999999.wav are no dates", implausible_clocks),
    12: ("a bomb of YAML aliases is refused in three lines", yaml_bomb),
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--line", action="append", type=int, choices=LINES, default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    codes = {name: Path(folder).resolve() for name, _, folder in (item.partition("=") for item in args.code)}
    result: dict[str, dict[str, object]] = {}
    for number in args.line or LINES:
        text, holds = LINES[number]
        result[str(number)] = {"line": text}
        for name, code in codes.items():
            with tempfile.TemporaryDirectory() as folder:
                result[str(number)][name] = "held" if holds(Bench(code, Path(folder))) else "broken"
        print(number, result[str(number)], flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
