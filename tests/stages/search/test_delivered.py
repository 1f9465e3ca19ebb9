"""What was tuned is delivered: evaluate and detect with the tuned model give the figures that tune reported."""

import json

import pyarrow.parquet as pq
import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.loading import apply_overrides
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.score_sheet import ScoreSheet
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.self_training.pool import read_pool
from mast_ray.stages.detect.detect import DetectInputs, detect
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.search.tune import run_tune
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.files.model_files import read_card
from mast_ray.training.files.post_processing import PostProcessing
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # runs a network


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("delivered")


@pytest.fixture(scope="module")
def config():
    # fresh weights: any overlap counts as right, so that some settings are better than others
    return small_config(**{"tune.thresholds": 40, "evaluate.iou": 0.02, "evaluate.score_floor": 0.05})


@pytest.fixture(scope="module")
def tuned(place, config):
    """(prepared, model, what tune reported): fresh weights, post-processing tuned on validation."""
    prepared = str(make_prepared(place, num_recordings=8, seconds=16))
    model = write_seed_detector(config, prepared, place / "model")
    found = run_tune(config, prepared, model, str(place / "tune"), what="post", runner=HERE)
    return prepared, model, found


def test_tune_leaves_the_best_of_one_threshold_in_the_card(tuned, place):
    _, model, found = tuned
    card = read_card(model)
    post = PostProcessing.from_dict(card.post)
    assert post == found.post and post.split == "val" and 0 < post.f1 <= found.objective
    assert card.score_threshold == post.threshold
    tried = pq.read_table(place / "tune/post_trials.parquet").to_pylist()
    assert post.f1 == max(row["objective"] for row in tried if row["policy"] == "fixed")


def test_evaluate_gives_the_figure_that_tune_reported(tuned, place, config):
    prepared, model, found = tuned
    scores = evaluate_model(config, model, prepared, str(place / "scores"), Wanted(("val",)), runner=HERE)
    row = next(
        row for row in scores.sheet.rows if row.split == "val" and row.unit == "chunk" and row.is_whole
    )
    assert row.figures["f1"].estimate == pytest.approx(found.post.f1, abs=1e-9)


def test_pseudo_labels_by_the_verb_are_what_the_model_delivers(tuned, place, config):
    prepared, model, found = tuned
    out = str(place / "pseudo")
    run_pseudo_label(config, model, prepared, out, splits=("val",), runner=HERE, boxes="delivered")
    archive = open_prepared(prepared)
    chunks = chunks_of_split(archive, "val")
    pool = read_pool(open_storage(out), archive, chunks)
    f1 = summarise(score_chunks(archive, chunks, pool, config).matches, found.post.threshold).f1
    assert f1 == pytest.approx(found.post.f1, abs=1e-9)


def test_detect_on_the_recordings_gives_the_figures_of_evaluate_at_the_tuned_settings(tuned, place, config):
    """The one from sound, the other from stored spectrograms of half precision: a box may fall to the other side."""
    prepared, model, found = tuned
    inputs = DetectInputs(model, str(place / "archive"), str(place / "detections"))
    assert detect(inputs, config, runner=HERE) == 0
    own = tables_of(place, prepared, found.post.threshold, config)
    scores = evaluate_model(config, model, prepared, str(place / "scores"), Wanted(("val",)), runner=HERE)
    row = next(r for r in scores.sheet.rows if r.split == "val" and r.unit == "recording" and r.is_whole)
    assert own.figures["f1"].estimate == pytest.approx(row.figures["f1"].estimate, abs=0.1)
    assert abs(own.num_detections - row.num_detections) <= 1 and row.num_detections > 4


def tables_of(place, prepared, threshold, config):
    """The row that `mast evaluate --detections` writes."""
    out = place / "by_tables"
    knobs = ["--threshold", repr(threshold), "--iou", str(config.evaluate.iou), "--out", str(out)]
    assert run_verb("evaluate", ["--detections", str(place / "detections"), "--annotations", prepared,
                                 "--split", "val", *knobs]) == 0  # fmt: skip
    return next(row for row in ScoreSheet.from_json((out / "metrics.json").read_bytes()).rows if row.is_whole)


def test_detect_follows_the_card_and_says_otherwise_when_it_does_not(tuned, place, config):
    _, model, found = tuned
    inputs = DetectInputs(model, str(place / "archive"), str(place / "detections"))
    assert detect(inputs, config, runner=HERE) == 0
    boxes = pq.read_table(place / "detections/detections")
    assert (
        json.loads((place / "detections/manifest.json").read_text())["counts"]["model_threshold"]
        == found.post.threshold
    )
    length_s = boxes["end_s"].to_numpy() - boxes["begin_s"].to_numpy()
    is_whole = boxes["end_s"].to_numpy() < 15.9  # a box at the end of its recording is cut there
    assert is_whole.sum() > 100 and length_s[is_whole].min() >= found.post.min_duration_s - 1e-9
    plain = apply_overrides(config, {"evaluate.post": "none"})
    other = DetectInputs(model, str(place / "archive"), str(place / "plain"))
    assert detect(other, plain, runner=HERE) == 0
    assert len(pq.read_table(place / "plain/detections")) != len(boxes)
