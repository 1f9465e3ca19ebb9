"""Things made ahead in a thread: in order, never too many, errors where they belong, nobody left waiting."""

import queue
import threading

import pytest

from mast_ray.tables.reading.handover import Handover, made_ahead


def counting(made, end=10**9, closed=None):
    try:
        for number in range(end):
            made.append(number)
            yield number
    finally:
        if closed is not None:
            closed.set()


def test_everything_comes_in_order_and_then_the_end():
    assert list(made_ahead(counting([], 7), 2, "test")) == list(range(7))


def test_the_maker_stays_a_few_ahead_and_stops_with_the_taker():
    made, closed = [], threading.Event()
    taken = made_ahead(counting(made, closed=closed), 3, "test")
    assert next(taken) == 0
    taken.close()
    assert closed.is_set() and len(made) <= 1 + 3 + 1  # taken, waiting, and one in the maker's hand
    assert not [thread for thread in threading.enumerate() if thread.name == "test"]


def test_what_breaks_in_the_maker_is_raised_by_the_taker_after_what_came_before():
    def broken():
        yield 1
        raise OSError("disk")

    taken = made_ahead(broken(), 2, "test")
    assert next(taken) == 1
    with pytest.raises(OSError, match="disk"):
        next(taken)


def test_a_taker_may_look_without_waiting():
    gate = threading.Event()

    def slow():
        gate.wait(30)
        yield "late"

    with Handover(1).fed_by(slow(), "test") as handover:
        for timeout_s in (0.0, 0.01):
            with pytest.raises(queue.Empty):
                handover.take(timeout_s)
        gate.set()
        assert handover.take() == "late" and handover.take() is None
