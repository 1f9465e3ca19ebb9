"""Whose GPUs count: those of this machine, or of the cluster that a driver without one has joined."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from small_archive import make_prepared

from mast_ray.config.errors import CONFIG
from mast_ray.stages.runner import Here
from mast_ray.storage.spread import Resources
from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs import main, run
from mast_ray.verbs.gpu import has_gpu
from mast_ray.verbs.pipeline import Costs


@dataclass(frozen=True)
class Cluster(Here):
    """Works in this process, and says that it is a cluster."""

    name: str = "ray"
    num_gpus: float = 8.0
    log: list[str] = field(default_factory=list)  # of sessions that were opened and closed, and of questions

    @contextmanager
    def session(self):
        is_outer = self.log.count("open") == self.log.count("close")
        if is_outer:
            self.log.append("open")
        try:
            yield
        finally:
            if is_outer:
                self.log.append("close")

    def resources(self):
        assert self.log.count("open") > self.log.count("close"), "asked outside a session"
        self.log.append("asked")
        return Resources(96.0, self.num_gpus)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # as on the head of cluster.yaml
    found = Cluster()
    monkeypatch.setattr(main, "runner_named", lambda name: found if name == "ray" else Here())
    return found


def asked(*words):
    return main._asked("pretrain", ["prepared", "--out", "o", *words])[1]


def test_a_driver_without_a_gpu_uses_those_of_its_cluster(cluster):
    args = asked()
    with args.held:
        assert has_gpu(args) and has_gpu(args)
        assert cluster.log[0] == "open" and "close" not in cluster.log, "the work of the verb joins it too"
    assert cluster.log.count("open") == cluster.log.count("close") == 1


@pytest.mark.parametrize(("use_gpu", "expected"), [("yes", True), ("no", False)])
@pytest.mark.parametrize("runner", ["here", "ray"])
def test_what_a_user_says_about_gpus_counts_and_nothing_is_asked(cluster, runner, use_gpu, expected):
    args = asked("--runner", runner, "--set", f"cluster.use_gpu={use_gpu}")
    assert has_gpu(args) == expected and cluster.log == []


def test_a_gpu_that_is_asked_of_a_machine_without_one_is_said_to_be_missing(cluster, caplog):
    assert has_gpu(asked("--runner", "here", "--set", "cluster.use_gpu=yes"))
    assert "this machine has no GPU" in caplog.text


@pytest.mark.parametrize("runner", ["here", "ray"])
@pytest.mark.parametrize("found", [True, False])
def test_without_a_cluster_elsewhere_this_machine_is_looked_at(cluster, monkeypatch, runner, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    if runner == "ray":
        monkeypatch.delenv("RAY_ADDRESS")  # it would be started here
    assert has_gpu(asked("--runner", runner)) == found and cluster.log == []


@pytest.mark.parametrize(
    ("verb", "argv"),
    [
        ("embed", ["shipped", "archive", "--out", "o"]),
        ("self-train", ["archive", "--detector", "shipped", "--out", "o"]),
    ],
)
def test_the_shipped_detector_is_the_one_for_the_gpus_of_the_cluster(cluster, verb, argv):
    _, args = main._asked(verb, argv)
    assert str(shipped_model("compact")) in (getattr(args, "model", ""), getattr(args, "detector", ""))
    asked_once = list(cluster.log)
    main._asked(verb, [word.replace("shipped", "shipped:tiny") for word in argv])
    assert cluster.log == asked_once, "a model that is named needs no cluster"


def test_a_run_on_a_gpu_cluster_is_not_cut_to_thirty_minutes_of_its_head(cluster, tmp_path, monkeypatch):
    make_prepared(tmp_path, num_recordings=8, seconds=12)
    run_steps, later = run.run_steps, []

    def prepare_alone(steps, run_verb, out, **more):
        if steps[0].verb == "prepare":
            return run_steps(steps, run_verb, out, **more)
        later.append((steps, more["costs"]))
        return CONFIG

    monkeypatch.setattr(run, "run_steps", prepare_alone)
    given = ["--audio", str(tmp_path / "archive"), "--annotations", str(tmp_path / "labels.csv")]
    assert main.run_verb("run", [*given, "--out", str(tmp_path / "run"), "--price", "4.1"]) == CONFIG
    ((steps, costs),) = later
    train = next(step for step in steps if step.verb == "train")
    assert costs == Costs(8, 4.1)
    assert train.argv[-2:] == ("--recipe", "field"), "nothing is cut"
    assert not (tmp_path / "run" / "pace.json").exists(), "the pace of the head says nothing"
    assert cluster.log.count("open") == cluster.log.count("close") == 1


def test_gpus_that_a_cluster_starts_on_demand_are_paid_too():
    config = main.config_of("field", None, ["cluster.num_workers=8"])
    assert run._paid_gpus(Resources(0.0, 0.0), config) == 8
    assert run._paid_gpus(Resources(192.0, 16.0), config) == 16
    assert run._paid_gpus(Resources(8.0, 1.0, is_one_process=True), config) == 1
