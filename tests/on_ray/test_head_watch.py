"""A head that stops answering interrupts the work, and the error says so; nothing of Ray is needed to see it."""

import socket
import subprocess
import sys
import threading

import pytest

from mast_ray.config.errors import TemporaryError
from mast_ray.config.signals import interruptible
from mast_ray.on_ray import head_watch
from mast_ray.on_ray.head_watch import silence_of, watched_head


@pytest.fixture
def head(monkeypatch):
    """A listening socket, and its address."""
    monkeypatch.setattr(head_watch, "CHECK_EVERY_S", 0.01)
    monkeypatch.setenv(head_watch.RECONNECT, "0.05")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening, "127.0.0.1:{1}".format(*listening.getsockname())


def test_a_head_that_is_gone_ends_the_wait_for_its_answer_with_a_remedy(head):
    listening, address = head
    told = pytest.raises(TemporaryError, match="went away:\nstart the cluster again")
    with interruptible(), told, watched_head(address):
        listening.close()
        threading.Event().wait(30)  # as a driver waits for results that will not come
    assert isinstance(silence_of(address), OSError)


def test_a_raylet_that_is_gone_ends_it_at_once(head):
    told = pytest.raises(TemporaryError, match=r"\(raylet\) was killed:\nlook for exhausted memory")
    with interruptible(), told, watched_head(head[1], lambda: True):
        threading.Event().wait(30)


def test_what_fails_while_the_head_answers_keeps_its_name(head):
    with pytest.raises(ValueError, match="mine"), watched_head(head[1]):
        raise ValueError("mine")
    with watched_head(head[1]):
        assert silence_of(head[1]) is None


STARTING = """
import os, sys
from mast_ray.on_ray.head_watch import last_words
try:
    with last_words():
        {}
except ValueError:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("does", "code", "lines"),
    [("os._exit(1)", 1, 2), ("os.kill(os.getpid(), 9)", -9, 2), ("pass", 0, 0), ("raise ValueError", 3, 0)],
)
def test_who_is_ended_while_ray_starts_has_last_words_and_who_leaves_has_none(does, code, lines):
    """Ray ends a driver whose raylet does not answer with 1 and says nothing (found by chaos, seed 2)."""
    ran = subprocess.run(
        [sys.executable, "-c", STARTING.format(does)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == code
    assert len(ran.stderr.splitlines()) == lines, ran.stderr
    assert (lines == 0) or ran.stderr.startswith("error: this process was ended while Ray started")
