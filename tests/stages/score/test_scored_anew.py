"""An evaluation into a folder that holds another one: a kill in between leaves no figures under the other's name."""

import json
import shutil

import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config
from stopped import Killed, stopped_at

from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import Wanted, evaluate_model


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("scored")
    prepared = make_prepared(root, num_recordings=6, seconds=8)
    return write_seed_detector(small_config(), prepared, root / "model"), str(prepared)


def test_killed_anywhere_either_threshold_gives_its_own_figures_afterwards(places, tmp_path, monkeypatch):
    config = small_config(**{"evaluate.max_detections": 10, "evaluate.bootstrap": 10})

    def f1(out, threshold):
        found = evaluate_model(config, *places, str(out), Wanted(("val",), threshold=threshold), runner=HERE)
        row = found.sheet.whole("val")
        told = json.loads((out / "metrics.json").read_text())
        return found.threshold.value, row.num_detections, told["threshold"]["value"]

    first = tmp_path / "first"
    low = f1(first, 0.05)
    for number in range(1, 40):
        out = tmp_path / f"out{number}"
        shutil.copytree(first, out)
        with stopped_at(monkeypatch, number) as tried:
            try:
                high = f1(out, 0.9)
                break
            except Killed:
                pass
        assert f1(out, 0.05) == low, tried[-1]
    assert number > 3 and high != low
