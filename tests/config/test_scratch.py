"""Scratch folders: gone with their block, and after a kill with the next process of this machine."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mast_ray.config.scratch import remove_abandoned, scratch_folder

HOLDER = """
import sys
from mast_ray.storage.storage import open_storage
with open_storage("s3://archive/out").scratch_file() as path:
    path.write_bytes(b"x" * 1500000)
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that writes a scratch file for a bucket, and that file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def test_what_a_killed_process_has_left_is_removed_and_told_and_that_of_a_living_one_stays(
    holder, tmp_path, caplog
):
    process, file = holder
    assert file.stat().st_size == 1_500_000 and tmp_path in file.parents
    assert remove_abandoned(str(tmp_path)) == 0 and file.exists() and not caplog.text
    process.send_signal(signal.SIGKILL)
    process.wait()
    with caplog.at_level(logging.WARNING):
        assert remove_abandoned(str(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    assert "removed 1 scratch folder (1.5 MB)" in caplog.text


def test_the_next_process_begins_with_it(holder, tmp_path):
    process, _ = holder
    process.kill()
    process.wait()
    line = "from mast_ray.config.scratch import scratch_folder\nwith scratch_folder(): pass"
    told = subprocess.run(
        [sys.executable, "-c", line], env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == [] and "removed 1 scratch folder" in told.stderr


def test_folders_of_other_machines_and_of_other_programs_are_left_alone(tmp_path):
    for name in ("mast-tmp-a/lock-elsewhere", "mast-tmp-b/unlocked", f"other/lock-{os.uname().nodename}"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert remove_abandoned(str(tmp_path)) == 0 and len(list(tmp_path.iterdir())) == 3


def test_a_scratch_folder_goes_with_its_block(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="broken"), scratch_folder() as folder:
        (folder / "below").mkdir()
        raise ValueError("broken")
    assert list(tmp_path.iterdir()) == []
