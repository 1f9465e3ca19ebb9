"""Fixtures shared by all tests: the folder of real sound, and quiet, small Ray clusters."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A shell ignores it for what it starts in the background; what tests interrupt must hear it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("no_clock", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("no_clock")
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder beside the checkout that holds real sound and reference lists
    (MAST_TEST_DATA points at its data/).
    """
    named = os.environ.get("MAST_TEST_DATA")
    folder = Path(named).parent if named else REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no real sound: set MAST_TEST_DATA to the data folder to run this test")
    return folder


@pytest.fixture(scope="session")
def shared_data(shared_folder: Path) -> Path:
    """The folder of real sound (clips, scenes, soundscapes, hard cases)."""
    named = os.environ.get("MAST_TEST_DATA")
    folder = Path(named) if named else shared_folder / "data"
    if not folder.is_dir():
        pytest.skip("no real sound: set MAST_TEST_DATA to the data folder to run this test")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    # Test processes share the machine: more threads than cores only slow each other down.
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
