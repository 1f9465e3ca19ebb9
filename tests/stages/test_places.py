"""Places named by a user stay the same places in every process."""

from pathlib import Path

import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.stages.detect.detect import DetectInputs, Sweep, detect
from mast_ray.stages.studies import compare, label_budget
from mast_ray.stages.studies.methods import chosen_methods
from mast_ray.storage.storage import full_url
from mast_ray.tables.prepared import open_prepared


def test_a_relative_place_is_made_absolute_before_workers_see_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert full_url("demo/prepared") == str(Path(tmp_path) / "demo" / "prepared")
    assert full_url("s3://bucket/a/b") == "s3://bucket/a/b"
    assert full_url("") == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """archive, prepared and detector, to be named relative to it."""
    root, config = tmp_path_factory.mktemp("places"), small_config()
    write_seed_detector(config, make_prepared(root, num_recordings=6, seconds=12), root / "detector")
    return root


def test_runs_of_a_study_name_whole_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config, archive = small_config(), open_prepared("prepared")
    methods = chosen_methods([], config, "")
    comparison = compare.Comparison(config, "prepared", "out", methods, (0,))
    budgets = label_budget.BudgetStudy(config, "prepared", "out", (1,))
    runs = compare.planned_runs(comparison, archive, "encoder", ("val",))
    runs += label_budget.planned_runs(budgets, archive, "encoder")
    places = [place for run in runs for place in run.arguments[1:4] if place]
    assert len(places) > 6 and all(place.startswith(str(folder)) for place in places)


def test_workers_of_a_sweep_find_a_model_that_was_named_from_here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    makers = []
    monkeypatch.setattr(Sweep, "run", lambda sweep, runner, maker: makers.append(maker) or 0)
    detect(DetectInputs("detector", "archive", "found"), small_config())
    assert makers[0].model == str(folder / "detector")
