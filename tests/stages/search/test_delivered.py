"""What was tuned is delivered: evaluate and detect with the tuned model give the figures that tune reported."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.loading import apply_overrides, config_from_yaml
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.score_sheet import ScoreSheet
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.self_training.pool import read_pool
from mast_ray.stages.detect.detect import DetectInputs, detect
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.search.tune import run_tune
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.files.model_files import read_card, write_card
from mast_ray.training.files.post_processing import PostProcessing
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # runs a network


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("delivered")


@pytest.fixture(scope="module")
def config():
    # fresh weights: any overlap counts as right, so that some settings are better than others
    return small_config(
        **{
            "model.adapter": "hybrid",
            "tune.thresholds": 40,
            "evaluate.iou": 0.02,
            "evaluate.score_floor": 0.05,
        }
    )


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
    assert post == found.post and post.split == "val" and post.f1 > 0
    assert card.score_threshold == post.threshold
    tried = pq.read_table(place / "tune/post_trials.parquet").to_pylist()
    best = max((row for row in tried if row["policy"] == "fixed"), key=lambda row: row["highest_f1"])
    assert (post.f1, post.threshold) == (best["objective"], best["threshold"])
    assert 0.9 * best["highest_f1"] <= post.f1 <= best["highest_f1"]


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


def test_thresholds_by_site_in_the_card_count_in_evaluate_pseudo_label_and_detect(tuned, place, config):
    """Of S0 as many boxes as there are above its own threshold, of S1 what there was before."""
    prepared, model, found = tuned
    by_site, out = str(place / "by_site"), str(place / "site_pseudo")
    shutil.copytree(model, by_site)
    runs = {"one": model, "by_site": by_site}
    # a threshold that parts the boxes of S0, and not the one for all
    one = DetectInputs(model, str(place / "archive"), str(place / "at_one"))
    assert detect(one, config, runner=HERE) == 0
    at_s0 = pq.read_table(place / "at_one/detections/site=S0")["score"].to_numpy()
    near = np.sort(at_s0)[int(0.65 * len(at_s0)) : int(0.75 * len(at_s0))].astype(np.float64)
    widest = int(np.diff(near).argmax())
    own = float(near[widest : widest + 2].mean())  # in a gap: last bits differ from run to run
    assert abs(own - found.post.threshold) > 1e-3
    post = replace(found.post, site_thresholds={"S0": own})
    write_card(open_storage(by_site), replace(read_card(by_site), post=post.to_dict()))
    archive = open_prepared(prepared)
    chunks = chunks_of_split(archive, "val", "test", "train")
    is_s0 = np.array([site == "S0" for site in archive.recordings["site"].to_pylist()])[chunks.recording]
    kept = {}
    for name, folder in runs.items():
        run_pseudo_label(config, folder, prepared, f"{out}-{name}", splits=("val", "test", "train"), runner=HERE, boxes="delivered")  # fmt: skip
        kept[name] = read_pool(open_storage(f"{out}-{name}"), archive, chunks)
    plain, moved = kept["one"], kept["by_site"]
    wanted = np.where(is_s0[plain.chunk], own, post.threshold)
    assert 0 < (plain.score >= wanted).sum() != (plain.score >= post.threshold).sum()
    assert (moved.score >= post.threshold).sum() == (plain.score >= wanted).sum()
    assert (moved.score[~is_s0[moved.chunk]] == plain.score[~is_s0[plain.chunk]]).all()
    scores = evaluate_model(config, by_site, prepared, str(place / "site_scores"), runner=HERE)
    rows = [row for row in scores.sheet.rows if row.unit == "chunk" and row.is_whole]
    held_out = np.isin(chunks.recording, np.unique(chunks_of_split(archive, "val", "test").recording))
    assert sum(row.num_detections for row in rows) == (held_out[plain.chunk] & (plain.score >= wanted)).sum()
    assert (
        detect(DetectInputs(by_site, str(place / "archive"), str(place / "at_site")), config, runner=HERE)
        == 0
    )
    after = pq.read_table(place / "at_site/detections/site=S0")["score"].to_numpy()
    # windows are stitched by ratios of scores, which do not stay the same when logits are moved: some boxes fall to the other side
    assert (after >= post.threshold).sum() == pytest.approx((at_s0 >= own).sum(), rel=0.05)
    assert (after >= post.threshold).sum() > (at_s0 >= post.threshold).sum() > 0
    elsewhere = [pq.read_table(place / folder / "detections/site=S1") for folder in ("at_one", "at_site")]
    assert elsewhere[0]["score"].equals(elsewhere[1]["score"]) and len(elsewhere[0]) > 0


def test_the_settings_that_tune_leaves_hear_the_detector_as_its_card_says(tuned, place, config):
    """They said evaluate.post=none: self-training by them scored its seed at a threshold of other scores."""
    best = config_from_yaml((place / "tune/best.yaml").read_text(), "best.yaml")
    assert best.evaluate.post == config.evaluate.post == "card"


def test_what_finds_nothing_right_keeps_its_card(tuned, place, config):
    prepared, model, _ = tuned
    shutil.copytree(model, place / "lost")
    before = (place / "lost/card.json").read_bytes()
    strict = apply_overrides(config, {"evaluate.iou": 0.999})
    found = run_tune(
        strict, prepared, str(place / "lost"), str(place / "lost_tune"), what="post", runner=HERE
    )
    assert found.post is None and not found.best and found.objective == 0
    assert (place / "lost/card.json").read_bytes() == before


def test_pseudo_labels_of_a_tuned_teacher_have_the_threshold_of_scores_as_the_pool_has_them(
    tuned, place, config
):
    """The pool holds plain scores; those of its evaluation are weighed as the card says."""
    prepared, model, _ = tuned
    knobs = {
        "curriculum": "stage1_only",
        "policy": "tuned",
        "rounds": 1,
        "governor": "off",
        "stage1.max_steps": 1,
    }
    knobs = {f"self_train.{name}": value for name, value in knobs.items()}
    config = apply_overrides(config, knobs | {"evaluate.nms_overlap": 0.5, "self_train.nms_overlap": 0.5})
    thresholds = []
    for name, post in (("as_made", None), ("weighed", PostProcessing(0.5, 0.0, 1, 0.3, 1.0).to_dict())):
        shutil.copytree(model, place / name)
        card = replace(read_card(model), post=post, doubts_nested=False)
        write_card(open_storage(place / name), card)
        out = str(place / f"{name}_rounds")
        rounds = run_self_train(config, prepared, str(place / name), out, runner=HERE).rounds
        thresholds.append(rounds[1]["pseudo_threshold"])
    assert thresholds[0] == thresholds[1]
