"""What decides in CI: a `make` of our own stands in for the real one."""

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / ".ci" / "run"


@pytest.mark.parametrize(
    ("target", "what", "decide", "code"),
    [
        ("lint", "exit 2", "no", 2),
        ("test", "exit 2", "no", 2),
        ("test-services", "exit 2", "yes", 2),  # what failed twice
        ("test-services", "exit 2", "no", 0),
        ("test-services", "exec sleep 30", "yes", 0),  # out of time: reported
        ("none", "exit 2", "yes", 0),
    ],
)
def test_every_part_decides_as_told_and_running_out_of_time_never_does(tmp_path, target, what, decide, code):
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\n[ "$1" = {target} ] && {what}\nexit 0\n')
    make.chmod(0o755)
    variables = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SERVICES_LIMIT_S": "0.5",
        "SERVICES_DECIDE": decide,
    }
    done = subprocess.run([str(RUN)], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("within the limit" in done.stdout) == (what != "exit 2")
