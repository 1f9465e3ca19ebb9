"""Work units on a real Ray cluster: deaths and hangs are survived, counted and quarantined."""

import errno
from pathlib import Path

import pytest
import ray
from poison_work import FullDisk, HeldModel, StoreAway, work

from mast_ray.config.errors import TemporaryError
from mast_ray.on_ray.units import run_units
from mast_ray.storage.spread import Spread
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Item, plan_units, read_commits, tally

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    log = tmp_path_factory.mktemp("poison") / "deaths"
    tests = Path(__file__).resolve().parents[1]
    variables = {"POISON_LOG": str(log), "PYTHONPATH": f"{tests / 'support'}:{tests.parent}"}
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables}
    )
    yield log
    ray.shutdown()


def items(*names):
    return [Item(f"id{n:02d}", name, 10, "v") for n, name in enumerate(names)]


def test_a_crashing_and_a_hanging_file_are_quarantined_and_harm_nobody(cluster, tmp_path):
    stage = open_storage(tmp_path)
    names = [f"{n:02d}.wav" for n in range(12)]
    names[3], names[9] = "03segfault.wav", "09hang.wav"
    listed = items(*names)
    units = plan_units(listed, 4, 10**9)
    reports = list(run_units(stage, units, "run", lambda: work, Spread(timeout_s=3.0)))
    commits = read_commits(stage)
    outcomes = {o.item_id: o for c in commits for o in c.outcomes}
    assert sum(r.num_items for r in reports) == 12 and tally(listed, commits) == (12, 10, 2)
    assert (outcomes["id03"].reason, outcomes["id09"].reason) == ("CRASH", "TIMEOUT")
    assert cluster.read_text().count("death") <= 3


def test_workers_build_their_work_once_and_hold_it_for_one_stage(cluster, tmp_path):
    stage = open_storage(tmp_path)
    listed = items(*[f"{n}.wav" for n in range(20)])
    units = plan_units(listed, 4, 10**9)
    list(run_units(stage, units, "run", HeldModel, Spread(2)))
    commits = read_commits(stage)
    assert tally(listed, commits).done == 20
    first = {o.record["pid"] for c in commits for o in c.outcomes}
    assert len(first) <= 2
    again = open_storage(tmp_path / "again")
    list(run_units(again, units, "run", HeldModel, Spread(2)))
    builds = [o.record["built"] for s in (stage, again) for c in read_commits(s) for o in c.outcomes]
    pids = {o.record["pid"] for c in read_commits(again) for o in c.outcomes}
    assert len(set(builds)) <= 4 and pids & first  # the same processes, each with work of its own stage


def test_a_crashing_file_in_a_worker_that_holds_its_work_is_quarantined_too(cluster, tmp_path):
    stage = open_storage(tmp_path)
    listed = items("0.wav", "1segfault.wav", "2.wav", "3.wav", "4.wav")
    list(run_units(stage, plan_units(listed, 4, 10**9), "run", HeldModel, Spread(1)))
    assert tally(listed, read_commits(stage)) == (5, 4, 1)


def test_what_a_worker_meets_keeps_its_meaning(cluster, tmp_path):
    units = plan_units(items("0.wav", "1.wav"), 1, 10**9)
    with pytest.raises(OSError) as full:
        list(run_units(open_storage(tmp_path / "a"), units, "run", FullDisk, Spread()))
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, "/output/frames")
    assert not isinstance(full.value, ray.exceptions.RayError)
    with pytest.raises(TemporaryError, match="SlowDown") as away:
        list(run_units(open_storage(tmp_path / "b"), units, "run", StoreAway, Spread(1)))
    assert away.value.exit_code == 75 and str(away.value).count("\n") == 1
