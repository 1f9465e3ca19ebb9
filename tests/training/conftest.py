"""Scratch folders in memory where the machine has them: checkpoints sync every file,
and a busy disk makes that slow.
"""

import tempfile
from pathlib import Path

import pytest
import torch

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def _one_thread(_few_threads):
    torch.set_num_threads(1)  # toy tensors: a second thread costs more than it gives


@pytest.fixture
def tmp_path(tmp_path_factory):
    if not MEMORY.is_dir():
        yield tmp_path_factory.mktemp("training")
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="mast-test-") as folder:
        yield Path(folder)
