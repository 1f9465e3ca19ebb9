"""Processes beside this one end with it, however it ends."""

import signal
import subprocess
import sys
import time

import psutil

DRIVER = """
import os, time
from mast_ray.storage.spread import process_pool

if __name__ == "__main__":
    pool = process_pool(1)
    print(pool.submit(os.getpid).result(), flush=True)
    {then}
    time.sleep(60)
"""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ends_with_killed_driver(tmp_path, then: str) -> bool:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(then=then))
    driver = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    assert not is_gone(worker)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until = time.monotonic() + 30
    while not is_gone(worker) and time.monotonic() < until:
        time.sleep(0.05)
    return is_gone(worker)


def test_a_process_that_waits_for_work_ends_with_its_killed_driver(tmp_path):
    assert ends_with_killed_driver(tmp_path, "pass")


def test_a_process_at_work_ends_with_its_killed_driver(tmp_path):
    assert ends_with_killed_driver(tmp_path, "pool.submit(time.sleep, 60)")
