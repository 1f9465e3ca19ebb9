"""What a user sees of the workers' output."""

import logging
from pathlib import Path

import pytest
import ray

from mast_ray.config.chatter import chatter_apart, chatter_file
from mast_ray.config.errors import ConfigError, TemporaryError
from mast_ray.on_ray import session
from mast_ray.on_ray.session import TOKENS, print_our_lines, ray_session
from mast_ray.storage.spread import Resources


def test_progress_is_shown_and_rays_chatter_is_not(capsys):
    lines = [
        "step 10/22 (epoch 0.9): loss 1.3781, 16 chunks/s",
        "Failed to query Ray Train Controller actor state. State API may be temporarily unavailable.",
        "Reporting training result 1: TrainingReport(checkpoint=None)",
        "error: the disk is full",
    ]
    print_our_lines({"lines": lines, "is_err": False, "pid": 1})
    assert capsys.readouterr().out.splitlines() == [lines[0], lines[3]]


def test_the_troubles_of_rays_own_controller_are_kept_apart(capsys):
    lines = ["Failed to send resource request for train-1.", "Traceback (most recent call last):"]
    print_our_lines({"lines": lines, "is_err": True, "pid": 1, "actor_name": "TrainController"})
    print_our_lines({"lines": ["step 1/4"], "is_err": True, "pid": 2, "actor_name": "RayTrainWorker"})
    assert capsys.readouterr() == ("", "step 1/4\n")


def test_what_ray_tells_of_a_process_that_died_is_kept_apart(capfd):
    from ray._private import worker

    before = worker.print_to_stdstream
    try:
        session._show_our_lines_only()
        with chatter_apart():
            worker.print_to_stdstream(
                {"lines": ["A worker died"], "pid": "raylet", "is_err": False}, ignore_prefix=False
            )
            assert "A worker died" in Path(chatter_file()).read_text()
    finally:
        worker.print_to_stdstream = before
    assert capfd.readouterr() == ("", "")


def test_that_tokens_are_asked_for_is_no_warning_and_that_they_are_not_is_one(monkeypatch, caplog):
    said = [
        "Token authentication is enabled for this Ray cluster. Set ...",
        "Token authentication is disabled ...",
    ]

    def init(**options):
        for one in said:
            logging.getLogger(TOKENS).warning(one)
        raise Exception("and ends here")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(TemporaryError), ray_session():
        pass
    assert caplog.messages == said[1:]


def test_a_ray_that_dies_on_the_way_up_is_said_in_two_lines_and_may_be_tried_again(monkeypatch):
    starts = []

    def init(**options):
        starts.append(options)
        raise Exception("The current node timed out during startup. The raylet may have failed.\nMore of it")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(TemporaryError, match="timed out during startup") as said, ray_session():
        pass
    assert (
        len(str(said.value).splitlines()) == 2 and len(starts) == 2
    )  # the second start of a busy machine is quicker


@pytest.mark.parametrize(
    ("there", "wanted", "remedy"),
    [
        ((2.0, 0.0), (1, 1.0, 1.0), "has no GPU"),
        ((2.0, 0.0), (4, 1.0, 0.0), "--set cluster.num_workers=2"),
        ((16.0, 1.0), (8, 1.0, 1.0), "--set cluster.num_workers=1"),
        ((2.0, 0.0), (1, 8.0, 0.0), "--set cluster.cpus_per_worker=2"),
    ],
)
def test_what_ray_on_this_machine_would_wait_for_for_ever_is_refused_and_a_cluster_may_grow(
    there, wanted, remedy, monkeypatch, caplog
):
    monkeypatch.setattr(session, "cluster_resources", lambda: Resources(*there))
    monkeypatch.setattr(session, "_is_own", True)
    with pytest.raises(ConfigError, match=remedy) as refused:
        session.refuse_more_than_there_is(*wanted)
    assert len(str(refused.value).splitlines()) <= 3
    session.refuse_more_than_there_is(1, 2.0, there[1])  # fits
    monkeypatch.setattr(session, "_is_own", False)
    with caplog.at_level(logging.WARNING):
        session.refuse_more_than_there_is(*wanted)
    assert "waiting until it has grown" in caplog.text


def test_a_gpu_is_fed_by_the_cores_of_its_own_machine(monkeypatch):
    def machine(alive=True, **resources):
        return {"Alive": alive, "Resources": resources}

    there = [
        machine(memory=1.0),
        machine(CPU=96.0, GPU=8.0),
        machine(CPU=32.0),
        machine(False, CPU=2.0, GPU=1.0),
    ]
    monkeypatch.setattr(ray, "nodes", lambda: there)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 128.0, "GPU": 8.0})
    assert session.cluster_resources() == Resources(128.0, 8.0, cores_per_gpu=12.0)
    monkeypatch.setattr(ray, "nodes", lambda: there[:1])
    monkeypatch.setattr(ray, "cluster_resources", dict)
    assert session.cluster_resources() == Resources(1.0, 0.0)
