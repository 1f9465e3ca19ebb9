"""Weights that are scored beside the training are chosen as if training had waited for their figures."""

from collections import deque

import pytest
from toy import SCHEDULE, ToyFeed, ToyValidation, toy_engine, toy_files, toy_fit, weights_equal

from mast_ray.storage.storage import open_storage
from mast_ray.training.files.metrics_log import read_metrics
from mast_ray.training.worker import LocalWorker


class Late:
    """Scores weights where they were put aside, and says so `delay` looks later."""

    def __init__(self, best, delay):
        self.best, self.delay, self.asked, self.looks = best, delay, deque(), 0

    def submit(self, step):
        self.asked.append((step, self.looks + self.delay))

    def ready(self, waits):
        self.looks += 1
        found = []
        while self.asked and (waits == "yes" or self.asked[0][1] < self.looks):
            step, _ = self.asked.popleft()
            found.append((step, ToyValidation().measure(self.best.read(step), None)))
        return found


def fit_beside(folder, delay, feed=None, engine=None):
    worker = LocalWorker()
    worker.beside = Late(toy_files(folder).best, delay)
    return toy_fit(folder, engine or toy_engine(), feed or ToyFeed(SCHEDULE), worker=worker)


def validations(folder):
    rows = [row for row in read_metrics(open_storage(folder)) if row["kind"] == "validation"]
    return sorted(rows, key=lambda row: row["step"])


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inline")
    return folder, toy_fit(folder, toy_engine(), ToyFeed(SCHEDULE))


@pytest.mark.parametrize("delay", [0, 1, 3, 100])
def test_figures_and_choice_are_those_of_a_run_that_waited(tmp_path, inline, delay):
    folder, waited = inline
    result = fit_beside(tmp_path, delay)
    assert validations(tmp_path) == validations(folder)
    assert result.position == waited.position and result.position.unscored == []
    assert result.validation == waited.validation
    best = result.position.best_step
    assert weights_equal(toy_files(tmp_path).best.read(best), toy_files(folder).best.read(best))


@pytest.mark.parametrize("stop", [5, 9, 15])
def test_a_killed_run_has_the_weights_scored_that_were_waiting(tmp_path, inline, stop):
    folder, waited = inline
    with pytest.raises(KeyboardInterrupt):
        fit_beside(tmp_path, 100, ToyFeed(SCHEDULE, stop_before=stop))
    newest = toy_files(tmp_path).checkpoints
    waiting = newest.read(newest.newest_good()).position.unscored
    assert waiting == [step for step in (4, 8, 12) if step <= stop // 3 * 3]
    result = fit_beside(tmp_path, 100)
    assert validations(tmp_path) == validations(folder)
    assert result.position == waited.position


def test_a_run_that_scored_beside_and_goes_on_inline_ends_with_the_same_choice(tmp_path, inline):
    folder, waited = inline
    with pytest.raises(KeyboardInterrupt):
        fit_beside(tmp_path, 100, ToyFeed(SCHEDULE, stop_before=7))
    result = toy_fit(tmp_path, toy_engine(), ToyFeed(SCHEDULE))
    assert result.position == waited.position and validations(tmp_path) == validations(folder)


def test_weights_that_are_gone_are_not_chosen(tmp_path, inline, caplog):
    class Losing(Late):
        def ready(self, waits):
            return [(step, {} if step == 16 else found) for step, found in super().ready(waits)]

    worker = LocalWorker()
    worker.beside = Losing(toy_files(tmp_path).best, 0)
    with caplog.at_level("WARNING"):
        result = toy_fit(tmp_path, toy_engine(), ToyFeed(SCHEDULE), worker=worker)
    assert [row["step"] for row in validations(tmp_path)] == [4, 8, 12]
    assert result.position.best_step == 12 and "step 16 are gone" in caplog.text
