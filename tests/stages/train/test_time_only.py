"""Labels that say when a call was and not at which frequencies: they teach time, from the table to the figures."""

import numpy as np
import pytest
import soundfile
from seed_detector import write_seed_detector
from small_archive import RATE_HZ, small_config

from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.train.pieces import has_enough_boxes
from mast_ray.stages.train.train import run_train_detector
from mast_ray.tables.prepared import open_prepared

pytestmark = pytest.mark.slow  # trains
KNOBS = {
    "model.adapter": "hybrid", "labels.time_only": "teach", "detector.epochs": 12, "detector.validate_every_epochs": 12,
    "detector.augment_probability": 0.0, "cluster.checkpoint_every_steps": 1000, "evaluate.bootstrap": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Faint tones of 0.3 to 0.8 s at any time and frequency; the table has no column of frequencies."""
    root = tmp_path_factory.mktemp("time_only")
    rows = ["path,begin_s,end_s,label"]
    for number in range(16):
        name = f"S{number % 2}/S{number % 2}_202405{number // 2 + 1:02d}_060000.wav"
        rng = np.random.default_rng(number)
        samples, end_s = rng.normal(0, 0.01, 10 * RATE_HZ), 0.3
        while (begin_s := end_s + rng.uniform(0.2, 2.2)) < 9.0:
            end_s = begin_s + rng.uniform(0.3, 0.8)
            time_s = np.arange(int(begin_s * RATE_HZ), int(end_s * RATE_HZ)) / RATE_HZ
            at = slice(int(begin_s * RATE_HZ), int(begin_s * RATE_HZ) + len(time_s))
            samples[at] += 0.05 * np.sin(2 * np.pi * rng.uniform(800, 6000) * time_s)
            rows.append(f"{name},{begin_s:.3f},{end_s:.3f},tone")
        (root / "archive" / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(root / "archive" / name, samples.astype(np.float32), RATE_HZ, "PCM_16")
    (root / "times.csv").write_text("\n".join(rows) + "\n")
    inputs = PrepareInputs(str(root / "archive"), str(root / "prepared"), str(root / "times.csv"))
    assert prepare(inputs, small_config(), runner=HERE) == 0
    return str(root / "prepared")


def test_labels_without_frequencies_teach_time_and_are_scored_in_time(prepared, tmp_path):
    labels = open_prepared(prepared).labels
    assert labels.column("low_hz").null_count == len(labels) > 50
    config = small_config(**KNOBS)
    fresh = write_seed_detector(config, prepared, tmp_path / "fresh")
    run_train_detector(config, prepared, str(tmp_path / "model"), runner=HERE)

    def scored(model, name):
        scores = evaluate_model(config, model, prepared, str(tmp_path / name), Wanted(("val",)), runner=HERE)
        return scores.sheet.whole("val")

    before, after = scored(fresh, "before"), scored(str(tmp_path / "model"), "after")
    assert after.num_time_only_truth == after.num_truth > 0
    assert after.figures["f1"] == after.figures["time_f1"]  # the band is neither right nor wrong
    for figure, least in (("f1", 0.5), ("ap_area", 0.7)):
        assert after.figures[figure].estimate > max(least, before.figures[figure].estimate + 0.3)


def test_they_teach_no_pieces(prepared):
    config = small_config(**KNOBS)
    assert not has_enough_boxes(config, prepared), "there is no box among them to put pieces together by"
