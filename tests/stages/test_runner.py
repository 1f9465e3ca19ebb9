"""Where work is done: what a stage may ask of a runner, whichever it is."""

import os

import pytest

from mast_ray.config.tree import ClusterConfig
from mast_ray.stages.runner import HERE, ON_RAY, RUNNERS, usable_cores
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.main import run_verb


def add(number, before):
    return number + (before or 0)


def test_tasks_here_take_the_result_of_the_one_they_wait_for():
    tasks = [("a", lambda before: add(1, before), ""), ("b", lambda before: add(2, before), "a")]
    tasks += [("c", lambda before: add(4, before), "b"), ("d", lambda before: add(8, before), "")]
    assert list(HERE.run_tasks(tasks, ClusterConfig())) == [("a", 1), ("b", 3), ("c", 7), ("d", 8)]


def test_a_train_loop_here_is_a_crew_of_one(tmp_path):
    seen = []
    HERE.train(lambda worker: seen.append(worker), open_storage(tmp_path), ClusterConfig(use_gpu="no"))
    assert [(worker.rank, worker.world_size, worker.device.type) for worker in seen] == [(0, 1, "cpu")]


def test_this_machine_offers_its_cores_to_one_process():
    assert HERE.resources().num_cpus == usable_cores() and HERE.resources().is_one_process


def test_a_verb_hands_down_the_runner_that_was_named(monkeypatch):
    import mast_ray.verbs.pretrain as verb

    handed = []
    monkeypatch.setattr(verb, "run", lambda args: handed.append(args.runner) or 0)
    for words in ([], ["--runner", "ray"], ["--runner", "here"]):
        run_verb("pretrain", ["prepared", "--out", "out", *words])
    assert handed == [ON_RAY, ON_RAY, HERE] and list(RUNNERS) == ["ray", "here"]


@pytest.mark.ray
@pytest.mark.slow
def test_tasks_on_ray_give_the_same_results():
    tasks = [("a", str, ""), ("b", len, "a"), ("c", repr, "b")]
    found = dict(ON_RAY.run_tasks(tasks, ClusterConfig(use_gpu="no")))
    assert found == dict(HERE.run_tasks(tasks, ClusterConfig())) == {"a": "None", "b": 4, "c": "4"}


@pytest.mark.parametrize(
    ("said", "cores"), [("1", 1), ("", 3), ("2", 2), ("64", 3), ("0", 3), ("2,1", 3), ("all", 3)]
)
def test_no_more_cores_than_it_is_bound_to_and_omp_num_threads_says(said, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert usable_cores() == cores
