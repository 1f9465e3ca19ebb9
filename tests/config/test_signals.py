"""Signals mean the same before and after a block of work."""

import os
import signal

import pytest

from mast_ray.config.signals import interruptible


def test_sigterm_stops_like_ctrl_c_and_only_inside_the_block():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_of_ctrl_c_that_a_library_left_behind_ends_with_the_block():
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        signal.signal(signal.SIGINT, lambda signum, frame: None)
    assert signal.getsignal(signal.SIGINT) is before
