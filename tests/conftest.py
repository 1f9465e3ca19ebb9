"""Fixtures shared by all tests: the folder of real sound, and quiet, small Ray clusters."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Two lanes share the machine: more threads than cores make each other four times slower (the first lane's process would
# hand its own number down to the others).
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's own 15 lets the other lane's trainings starve a cluster.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell ignores it for what it starts in the background; what tests interrupt must hear it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("no_clock", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("no_clock")
REPOSITORY = Path(__file__).resolve().parent.parent
# Files that take minutes, begun before all others: of two lanes none shall be left alone with one of them in the end.
# Not test_engines_together.py: after it the same process has been seen to end a training with other last bits.
LONGEST = (
    "test_train_on_ray.py", "test_dealt_training.py", "test_prepare_faults.py", "test_tune.py",
    "test_detect_faults.py", "test_self_train.py", "test_several_archives.py", "test_tune_on_s3.py", "test_every_verb.py",
    "test_detector.py", "test_review_and_learn_in_browser.py", "test_validate_beside.py", "test_jobs.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # What one test sets for its process would stay for the next. Before any fixture: those of modules train too.
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
