"""What decides in CI: a `make` of our own stands in for the real one."""

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / ".ci" / "run"


@pytest.mark.parametrize(
    ("target", "what", "code"),
    [
        ("lint", "exit 2", 2),
        ("test", "exit 2", 2),
        ("test-services", "exit 2", 2),  # what failed twice
        ("test-services", "exec sleep 30", 0),  # out of time: reported
        ("none", "exit 2", 0),
    ],
)
def test_every_part_decides_and_running_out_of_time_never_does(tmp_path, target, what, code):
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\n[ "$1" = {target} ] && {what}\nexit 0\n')
    make.chmod(0o755)
    (tmp_path / "chromium").symlink_to(make)  # nothing is installed by a test
    variables = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SERVICES_LIMIT_S": "0.5",
    }
    done = subprocess.run([str(RUN)], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("within the limit" in done.stdout) == (what != "exit 2")
