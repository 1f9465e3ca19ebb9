"""A first result from nothing: build the wheel, install it into an empty environment, and let the shipped detector find
boxes in a folder of recordings without any network.

    python benchmarks/installation.py RECORDINGS --out installation.json [--work DIR]

Installing takes packages from wherever pip is set up to look; what is timed after it (`mast detect`, its start included) runs
in a network namespace of its own (`unshare -rn`) where there is one, so that nothing can be fetched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
COUNT = "import sys; from mast_ray.reporting.detection_tables import read_detections as r; print(len(r(sys.argv[1])))"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", type=Path, help="folder of recordings")
    parser.add_argument("--out", type=Path, default=Path("installation.json"))
    parser.add_argument("--work", type=Path, help="folder for the environment (default: one that is removed)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = measured(args.recordings.resolve(), (args.work or Path(temporary)).resolve())
    args.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


def measured(recordings: Path, work: Path) -> dict[str, Any]:
    """Sizes and seconds of every step."""
    work.mkdir(parents=True, exist_ok=True)
    wheel, wheel_s = built_wheel(work)
    environment = work / "environment"
    venv.create(environment, with_pip=True, clear=True)
    python = environment / "bin" / "python"
    constraints = ("-c", str(REPOSITORY / "constraints.txt"))
    install_s = seconds_of([str(python), "-m", "pip", "install", "-q", *constraints, str(wheel)], work)
    found = work / "found"
    shutil.rmtree(found, ignore_errors=True)
    isolated = network_free()
    detect_s = seconds_of(
        [*isolated, str(environment / "bin" / "mast"), "detect", str(recordings), "--out", str(found)], work
    )
    boxes = subprocess.run(
        [str(python), "-c", COUNT, str(found)],
        cwd=work,
        env=clean(),
        check=True,
        capture_output=True,
        text=True,
    )
    return {
        "wheel_bytes": wheel.stat().st_size,
        "build_s": wheel_s,
        "install_s": install_s,
        "detect_s": detect_s,
        "without_network": bool(isolated),
        "boxes": int(boxes.stdout),
        "recordings": sum(path.is_file() for path in recordings.rglob("*")),
        "cores": os.cpu_count(),
    }


def built_wheel(work: Path) -> tuple[Path, float]:
    """From a copy of what the package needs, so that the checkout stays clean."""
    source, wheels = work / "source", work / "wheels"
    for folder in (source, wheels):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "mast_ray", source / "mast_ray", ignore=ignored)
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(source)]
    taken_s = seconds_of(argv, work)
    (wheel,) = wheels.glob("*.whl")
    return wheel, taken_s


def network_free() -> list[str]:
    """Words before a command that take the network away; none where the system does not let us."""
    argv = ["unshare", "-rn"]
    allowed = shutil.which("unshare") and subprocess.run([*argv, "true"], capture_output=True).returncode == 0
    return argv if allowed else []


def seconds_of(argv: list[str], where: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(argv, cwd=where, env=clean(), check=True)
    return round(time.perf_counter() - begun, 1)


def clean() -> dict[str, str]:
    """This environment without the paths of a checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


if __name__ == "__main__":
    main()
