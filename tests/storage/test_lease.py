"""The lease: one holder at a time, dead holders are replaced, clocks play no part."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from mast_ray.config.errors import RunActiveError
from mast_ray.config.signals import interruptible
from mast_ray.storage.lease import _identity, forget_lease, held_lease, lease_or_stop
from mast_ray.storage.storage import LocalStorage, open_storage


def test_a_second_run_is_refused_while_the_first_lives_and_welcome_afterwards(tmp_path):
    stage = open_storage(tmp_path)
    with held_lease(stage) as first:
        with pytest.raises(RunActiveError, match=r"run already active .lease 1") as caught, held_lease(stage):
            pass
        assert caught.value.exit_code == 5 and len(str(caught.value).splitlines()) <= 3
    with held_lease(stage) as second:
        assert (first.generation, second.generation) == (1, 2) and first.run != second.run


def test_of_five_contenders_at_once_one_wins(tmp_path):
    stage = open_storage(tmp_path)
    barrier, release, results = threading.Barrier(5), threading.Event(), []

    def contend():
        barrier.wait()
        try:
            with held_lease(stage):
                results.append("won")
                release.wait(10)
        except RunActiveError:
            results.append("refused")
            if results.count("refused") == 4:
                release.set()

    threads = [threading.Thread(target=contend) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["refused"] * 4 + ["won"]


def test_a_killed_holder_on_this_machine_is_seen_at_once(tmp_path):
    code = (
        "import os, sys\nfrom mast_ray.storage.lease import held_lease\n"
        "from mast_ray.storage.storage import open_storage\n"
        f"with held_lease(open_storage({str(tmp_path)!r})):\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    with held_lease(open_storage(tmp_path), ttl_s=600.0) as lease:
        assert lease.generation == 2


def foreign_holder(stage, generation=1):
    """A lease of a machine whose processes we cannot see."""
    holder = _identity() | {"run": "x", "host": "elsewhere", "place": "another boot"}
    stage.write_atomic(f"lease/{generation:06d}.json", json.dumps(holder).encode())


def test_a_silent_holder_on_another_machine_is_replaced_after_the_time_to_live(tmp_path):
    stage = open_storage(tmp_path)
    foreign_holder(stage)
    with held_lease(stage, ttl_s=0.3) as lease:
        assert lease.generation == 2


def test_a_beating_holder_on_another_machine_is_respected_whatever_its_clock_says(tmp_path):
    stage = open_storage(tmp_path)
    foreign_holder(stage)
    stop = threading.Event()

    def beat():
        count = 0
        while not stop.wait(0.05):
            count += 1
            stage.write_atomic("lease/000001.beat", f"x {count}".encode())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(RunActiveError, match="elsewhere"), held_lease(stage, ttl_s=5.0):
            pass
    finally:
        stop.set()
        thread.join()


def test_a_holder_that_was_replaced_hears_of_it(tmp_path):
    stage = open_storage(tmp_path)
    lost = threading.Event()
    with held_lease(stage, beat_s=0.05, on_loss=lost.set):
        foreign_holder(stage, generation=2)
        assert lost.wait(10)


@dataclass(frozen=True)
class LeavingStore(LocalStorage):
    """A store whose network goes away: from then on a write only ends when the network is back."""

    is_back: threading.Event = field(default_factory=threading.Event, hash=False)

    def write_atomic(self, key: str, data: bytes) -> None:
        assert self.is_back.wait(60)
        super().write_atomic(key, data)


def test_work_that_ends_does_not_wait_for_a_store_that_is_away(tmp_path):
    stage = LeavingStore(str(tmp_path))
    began_s = time.monotonic()
    threading.Timer(20.0, stage.is_back.set).start()
    with pytest.raises(KeyboardInterrupt), held_lease(stage, beat_s=0.05):
        raise KeyboardInterrupt
    assert time.monotonic() - began_s < 15
    stage.is_back.set()


def test_what_this_process_let_go_is_free_though_the_store_was_not_told_yet(tmp_path, monkeypatch):
    monkeypatch.setattr("mast_ray.storage.lease.RELEASE_S", 0.05)
    stage = LeavingStore(str(tmp_path))
    with held_lease(stage):
        pass
    with held_lease(stage) as second:
        assert second.generation == 2
        with pytest.raises(RunActiveError), held_lease(stage):
            pass
    stage.is_back.set()


def test_no_beat_follows_the_release(tmp_path):
    stage = LeavingStore(str(tmp_path))
    threading.Timer(0.5, stage.is_back.set).start()
    with held_lease(stage, beat_s=0.05):
        pass
    assert (tmp_path / "lease" / "000001.beat").read_bytes() == b"released"


@pytest.mark.parametrize("in_background", [False, True])
def test_a_replaced_holder_stops_also_while_it_waits(tmp_path, in_background):
    stage = open_storage(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    if in_background:  # a shell script's `mast detect ... &` is deaf to Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    began_s = time.monotonic()
    try:
        with pytest.raises(RunActiveError, match="taken over"), interruptible(), lease_or_stop(stage):
            foreign_holder(stage, generation=2)
            threading.Event().wait(30)  # as one waits for the next result
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began_s < 15


def test_a_lease_that_is_forgotten_leaves_that_of_the_run_after_it(tmp_path):
    stage = open_storage(tmp_path)
    for _ in range(2):
        with held_lease(stage) as ended:
            pass
    with held_lease(stage) as later:
        forget_lease(stage, ended)
        assert later.generation == 3 and [path.name for path in tmp_path.rglob("*.json")] == ["000003.json"]
        with pytest.raises(RunActiveError), held_lease(stage):
            pass
    forget_lease(stage, later)
    assert list(tmp_path.iterdir()) == []
