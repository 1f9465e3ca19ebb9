"""What Ray raises is what a worker met, or a loss that another start may cure; nothing else is hidden."""

import errno

import pytest
import ray.exceptions

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.on_ray.units import worker_error


def wrapped(cause):
    outer = RuntimeError("of Ray Data")
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    "lost",
    [
        ray.exceptions.WorkerCrashedError(),
        ray.exceptions.RayActorError(),
        ray.exceptions.NodeDiedError("node 7"),
        ray.exceptions.OutOfMemoryError("killed"),
    ],
)
def test_a_lost_process_or_machine_is_temporary(lost):
    for error in (lost, wrapped(lost)):
        found = worker_error(error)
        assert isinstance(found, TemporaryError) and type(lost).__name__ in str(found)


def test_what_a_worker_met_comes_out_of_its_wrapping():
    full, wrong = OSError(errno.ENOSPC, "full"), DataError("bad table")
    assert worker_error(wrapped(full)) is full and worker_error(wrapped(wrong)) is wrong


def test_a_fault_of_the_code_stays_what_it_is():
    fault = wrapped(KeyError("x"))
    assert worker_error(fault) is fault
