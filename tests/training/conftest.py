"""Scratch folders in memory where the machine has them: checkpoints sync every file,
and a busy disk makes that slow.
"""

import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path_factory):
    if not MEMORY.is_dir():
        yield tmp_path_factory.mktemp("training")
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="mast-test-") as folder:
        yield Path(folder)
