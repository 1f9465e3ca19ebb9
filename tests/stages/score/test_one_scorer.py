"""The same model on the same split has the same figures wherever it is scored: by the stage of `mast evaluate`, in a round of
self-training, in the report, and by training's own validation.
"""

import json
from dataclasses import replace

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from study_archive import make_study_archive, study_config, write_fresh_detector
from synthetic_model import numbed

from mast_ray.config.loading import apply_overrides
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.score_sheet import ScoreSheet
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.inference.chunk_detector import ChunkDetector, Inputs
from mast_ray.inference.chunk_scores import as_detected, found_in_chunks, unsuppressed
from mast_ray.inference.validation import DetectionValidation, validation_figures
from mast_ray.reporting.report.collect import collect_run
from mast_ray.reporting.report.collect_scores import split_name
from mast_ray.self_training.operator import Validity, doubted, is_valid, strongest, survives_suppression
from mast_ray.self_training.pool import read_pool
from mast_ray.self_training.round_records import score_column
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.score import evaluate
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.self_train.round_table import round_row, rounds_text
from mast_ray.stages.self_train.self_train import kept_figures
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import read_commits
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import load_detector
from mast_ray.training.files.model_files import read_card, read_model, write_model
from mast_ray.training.worker import LocalWorker
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # runs a network
SPLITS = ("val", "test", "temporal_ood", "site_ood")


@pytest.fixture(scope="module")
def config():
    # fresh weights find something right only where little overlap is asked for
    return study_config(evaluate__iou=0.1, self_train__rounds=1)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_study_archive(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def model(archive):
    return write_fresh_detector(archive.parent / "model", archive, threshold=None)


@pytest.fixture(scope="module")
def scores(config, archive, model):
    """Scored into the folder of the archive, so that a report finds both."""
    places = (str(model), str(archive), str(archive.parent / "scores" / "seed"))
    return evaluate_model(config, *places, runner=HERE)


def validated(config, archive, model, split):
    """What training would say of these weights on a split."""
    detector, card = load_detector(model)
    prepared = open_prepared(archive)
    reader = ChunkReader(prepared, chunks_of_split(prepared, split), batch_size=8, num_threads=1)
    inputs = Inputs(card.normaliser(), card.tail, torch.device("cpu"))
    return DetectionValidation(detector, prepared, reader, inputs, config).measure(
        detector.state_dict(), LocalWorker()
    )


def test_evaluate_report_round_table_and_validation_have_the_same_figures(config, archive, model, scores):
    table = round_row(config, 0, scores, scores)
    report = collect_run(open_storage(archive.parent))
    shown = {row[0]: dict(zip(report.tables[0].columns, row, strict=True)) for row in report.tables[0].rows}
    for split in SPLITS:
        own = scores.sheet.whole(split).figures
        assert table[score_column(split, "f1")]["estimate"] == own["f1"].estimate
        assert shown[split_name(split)]["F1"].value == own["f1"].estimate
        assert shown[split_name(split)]["AP"].value == own["ap_area"].estimate
    assert scores.threshold.source == "tuned" and scores.threshold.tuned_on == "val"
    undoubted = apply_overrides(config, {"evaluate.post": "none"})  # as its card has it
    in_training, own = validated(undoubted, archive, model, "val"), scores.sheet.whole("val").figures
    assert in_training["threshold"] == scores.threshold.value
    for name in ("f1", "precision", "recall", "ap_area", "f1_macro", "mean_iou", "time_f1"):
        assert in_training[name] == own[name].estimate > 0, name
    assert (
        dict(report.headline)["F1, in-domain test"].value == scores.sheet.whole("test").figures["f1"].estimate
    )
    assert report.curves and report.threshold == scores.threshold.value


def test_doubt_about_nested_boxes_gives_training_and_evaluate_the_same_figures(
    config, archive, model, tmp_path
):
    weights, card = read_model(model, "detector")
    doubting = write_model(open_storage(tmp_path / "model"), weights, replace(card, doubts_nested=True))
    assert read_card(tmp_path / "model") == doubting
    places = (str(tmp_path / "model"), str(archive))
    scores = evaluate_model(config, *places, str(tmp_path / "doubted"), runner=HERE)
    plain = apply_overrides(config, {"evaluate.post": "none"})
    without = evaluate_model(plain, *places, str(tmp_path / "plain"), runner=HERE)
    detector, _ = load_detector(model)
    prepared = open_prepared(archive)
    reader = ChunkReader(prepared, chunks_of_split(prepared, "val"), batch_size=8, num_threads=1)
    inputs = Inputs(card.normaliser(), card.tail, torch.device("cpu"))
    found = found_in_chunks(prepared, ChunkDetector(detector, inputs, 8, as_detected(config)), reader)
    wanted = validation_figures(score_chunks(prepared, reader.chunks, doubted(found), config))
    own = scores.sheet.whole("val").figures
    assert wanted["threshold"] == scores.threshold.value
    for name in ("f1", "precision", "recall", "ap_area"):
        assert wanted[name] == own[name].estimate, name
    assert own["ap_area"].estimate != without.sheet.whole("val").figures["ap_area"].estimate
    kept = [sum(len(one.matches.score) for one in each.splits.values()) for each in (scores, without)]
    assert kept[0] == kept[1] > 0, "nothing is left out"
    in_training = validated(config, archive, model, "val")
    assert in_training["f1"] == max(wanted["f1"], without.sheet.whole("val").figures["f1"].estimate)
    assert in_training["doubts_nested"] == float(
        wanted["f1"] > without.sheet.whole("val").figures["f1"].estimate
    )


def test_self_training_writes_the_figures_of_its_seed_as_evaluate_does(
    config, archive, model, scores, tmp_path
):
    from mast_ray.stages.self_train.self_train import run_self_train

    result = run_self_train(config, str(archive), str(model), str(tmp_path), runner=HERE)
    seed, student = result.rounds
    for split in SPLITS:
        assert seed[score_column(split, "f1")]["estimate"] == scores.sheet.whole(split).figures["f1"].estimate
    # the student was validated while it was trained, and scored when it was done
    trained = json.loads((tmp_path / "round1/stage2/summary.json").read_text())["best"]
    assert trained["f1"] == student["val_f1"]["estimate"] and trained["threshold"] == student["threshold"]


@pytest.mark.parametrize("teacher", ["fixed", "moving_average"])
def test_a_teacher_that_doubts_nested_boxes_labels_the_pool_so(config, archive, model, tmp_path, teacher):
    from mast_ray.stages.self_train.self_train import run_self_train

    knobs = {"self_train.curriculum": "mixed", "self_train.teacher": teacher, "self_train.policy": "fixed",
             "self_train.threshold": 0.05, "self_train.governor": "off"}  # fmt: skip
    config = apply_overrides(config, knobs)
    weights, card = read_model(model, "detector")
    boxes = {}
    for doubts in (False, True):
        folder = tmp_path / str(doubts)
        write_model(open_storage(folder / "seed"), weights, replace(card, doubts_nested=doubts))
        run_self_train(config, str(archive), str(folder / "seed"), str(folder / "rounds"), runner=HERE)
        labels = pq.read_table(folder / "rounds/round1/pseudo/pseudo_labels.parquet")
        boxes[doubts] = labels.filter(pc.invert(labels["is_ignored"]))
    prepared = open_prepared(archive)
    chunks = chunks_of_split(prepared, "pool")
    stored = open_storage(tmp_path / "True/rounds/round1/detections")
    wanted = doubted(read_pool(stored, prepared, chunks, overlap=0.5))
    wanted = wanted.where(is_valid(wanted, Validity()) & (wanted.score >= 0.05))
    assert sorted(boxes[True]["score"].to_pylist()) == sorted(wanted.score.tolist())
    assert 0 < len(boxes[True]) <= len(boxes[False])


def test_detections_against_annotations_agree_with_the_model_they_came_from(
    config, archive, scores, tmp_path, capsys
):
    found = archive.parent / "scores" / "seed" / "chunks"
    knobs = ["--threshold", repr(scores.threshold.value), "--iou", "0.1", "--out", str(tmp_path / "tables")]
    argv = [
        "--detections",
        str(found),
        "--annotations",
        str(archive),
        "--split",
        "test,site_ood",
        "--by",
        "site",
        *knobs,
    ]
    assert run_verb("evaluate", argv) == 0
    sheet = ScoreSheet.from_json((tmp_path / "tables" / "metrics.json").read_bytes())
    for split in ("test", "site_ood"):
        assert sheet.whole(split).figures["f1"].estimate == scores.sheet.whole(split).figures["f1"].estimate
    assert {row.cell for row in sheet.rows if row.by == "site"} == {"S0", "S2"} and not sheet.model_sha
    assert "site_ood S2" in capsys.readouterr().out
    assert run_verb("evaluate", argv[:4]) == 2  # chunks overlap: a split must be named
    assert "--split test" in capsys.readouterr().err


def test_a_search_over_suppression_finds_the_figures_of_evaluate_at_the_settings_as_they_are(
    config, archive, model, scores, tmp_path
):
    """Candidates are stored before suppression; suppressed once at the evaluation's overlap they are its detections."""
    task = ChunkTask(
        config, str(model), str(archive), str(tmp_path), ("val",), unsuppressed(config), "repeatable"
    )
    assert detect_chunks(task, HERE).manifest.counts["detections"] > len(scores.splits["val"].matches.score)
    prepared = open_prepared(archive)
    chunks = chunks_of_split(prepared, "val")
    found = read_pool(open_storage(tmp_path), prepared, chunks)
    for overlap, is_same in ((config.evaluate.nms_overlap, True), (0.2, False)):
        kept = found.where(survives_suppression(found, overlap))
        kept = kept.where(strongest(kept, config.evaluate.max_detections))
        metrics = summarise(score_chunks(prepared, chunks, kept, config).matches, scores.threshold.value)
        assert (metrics.f1 == scores.sheet.whole("val").figures["f1"].estimate) == is_same


def test_a_second_call_reads_what_is_stored_and_other_splits_or_figures_need_no_new_inference(
    config, archive, tmp_path, monkeypatch
):
    model, out = write_fresh_detector(tmp_path / "model", archive, threshold=0.05), str(tmp_path / "scores")
    first = evaluate_model(config, str(model), str(archive), out, Wanted(("val", "site_ood")), runner=HERE)
    assert tuple(first.splits) == ("val", "site_ood") and first.threshold == (0.05, "model", "")
    assert {(row.split, row.unit) for row in first.sheet.rows} == {
        (split, unit) for split in ("val", "site_ood") for unit in ("chunk", "recording")
    }
    (model / "weights.safetensors").unlink()
    again = evaluate_model(config, str(model), str(archive), out, Wanted(("val", "site_ood")), runner=HERE)
    assert again.sheet.to_json() == first.sheet.to_json()
    stricter = Wanted(("val", "site_ood"), threshold=0.2, by=("hour",))
    other = evaluate_model(config, str(model), str(archive), out, stricter, runner=HERE)
    assert other.threshold == (0.2, "given", "") and any(row.by == "hour" for row in other.sheet.rows)
    kept = other.sheet.whole("site_ood").num_detections
    assert kept < first.sheet.whole("site_ood").num_detections


def test_an_interrupted_evaluation_goes_on_with_the_units_that_are_left(
    config, archive, model, scores, tmp_path, monkeypatch
):
    """Two units of three chunks die with their process; the next start finds the first done, and all chunks counted once."""
    from mast_ray.stages.detect import chunks

    monkeypatch.setattr(chunks, "chunks_of_a_unit", lambda num_chunks: 3)
    original, calls = chunks.ChunkWork.__call__, []

    def dies_at_the_third(self, attempt, items):
        calls.append(attempt.unit.unit_id)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, attempt, items)

    monkeypatch.setattr(chunks.ChunkWork, "__call__", dies_at_the_third)
    arguments = (config, str(model), str(archive), str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        evaluate_model(*arguments, runner=HERE)
    assert len(read_commits(open_storage(tmp_path / "chunks"))) == 2
    done = evaluate_model(*arguments, runner=HERE)
    num_units = len(read_commits(open_storage(tmp_path / "chunks")))
    assert len(calls) == num_units + 1 and num_units >= 4  # the one that died was begun twice
    assert rows_of(done) == rows_of(scores)
    counts = json.loads((tmp_path / "chunks" / "manifest.json").read_text())["counts"]
    assert counts["chunks"] == 15 and counts["rejected_chunks"] == 0


@pytest.mark.ray
def test_units_on_ray_give_the_figures_of_one_process(config, archive, model, scores, tmp_path):
    spread = replace_cluster(config, num_workers=2)
    found = evaluate_model(spread, str(model), str(archive), str(tmp_path), runner=ON_RAY)
    assert rows_of(found) == rows_of(scores)


def rows_of(scores):
    return json.loads(scores.sheet.to_json())["rows"]


def replace_cluster(config, **knobs):
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=knobs)})


def test_gains_are_differences_each_model_at_its_own_threshold(config, scores):
    sheet = replace(scores.sheet, threshold=scores.threshold._replace(value=2.0))  # keeps nothing: F1 0
    silent = evaluate.ModelScores(sheet, scores.splits)
    gain = scores.gains_over(silent, config)["val"]["f1"]
    assert gain.estimate == scores.sheet.whole("val").figures["f1"].estimate > 0
    row = round_row(config, 1, scores, silent)
    assert row["val_f1_gain"]["estimate"] == gain.estimate
    text = rounds_text([round_row(config, 0, scores, scores), row])
    assert f"round 1   {0:.3f}" not in text.splitlines()[1] and "val" in text


def test_what_a_model_keeps_is_counted_over_all_chunks_of_validation(scores):
    kept, row = kept_figures(scores), scores.sheet.whole("val")
    assert kept.num_chunks == 3 and kept.boxes_per_chunk == pytest.approx(row.num_detections / 3)


def test_the_verb_scores_a_model_on_the_named_split_and_leaves_nothing_behind_without_out(
    archive, model, capsys, tmp_path
):
    knobs = ["--recipe", "tiny", "--set", "evaluate.bootstrap=20", "--set", "cluster.use_gpu=no"]
    assert (
        run_verb(
            "evaluate", [str(model), str(archive), "--split", "temporal_ood", "--by", "duration", *knobs]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert (
        "temporal_ood" in told
        and "site_ood" not in told
        and "per recording" in told
        and "temporal_ood 1-3 s" in told
    )
    assert run_verb("evaluate", [str(model), str(archive), "--split", "nowhere", *knobs]) == 3
    assert "it has val, test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("score_bias", "words"),
    [(-20.0, ["nothing at all"]), (-3.0, ["reaches the threshold 0.5", "the same boxes everywhere"])],
)
def test_a_model_that_finds_nothing_or_the_same_everywhere_is_said_so_with_its_figures(
    config, archive, model, tmp_path, capsys, score_bias, words
):
    blind = numbed(model, tmp_path / "blind", score_bias)
    places = (str(blind), str(archive), str(tmp_path / "out"))
    sheet = evaluate_model(config, *places, Wanted(threshold=0.5), runner=HERE).sheet
    assert len(sheet.warnings) == len(words)
    assert all(word in text for word, text in zip(words, sheet.warnings, strict=True))
    assert ScoreSheet.from_json((tmp_path / "out" / "metrics.json").read_bytes()).warnings == sheet.warnings
    arguments = [*places[:2], "--threshold", "0.5", "--recipe", "tiny", "--runner", "here"]
    run_verb("evaluate", arguments)
    assert capsys.readouterr().err.count("warning: ") == len(words)


def test_a_model_that_hears_differences_is_not_doubted(scores):
    assert scores.sheet.warnings == ()


def test_what_was_detected_before_is_copied_not_detected_again(
    config, archive, model, scores, tmp_path, monkeypatch
):
    known, again = tmp_path / "known", tmp_path / "again"
    evaluate_model(config, str(model), str(archive), str(known / "round0"), runner=HERE)
    monkeypatch.setattr("mast_ray.stages.detect.chunks.work_off", lambda *args: pytest.fail("detected again"))
    copied = evaluate_model(
        config, str(model), str(archive), str(again), Wanted(known=(str(known),)), runner=HERE
    )
    assert copied.sheet.rows == scores.sheet.rows
    copies = [stage.at("chunks") for stage in (open_storage(known / "round0"), open_storage(again))]
    assert {c.unit_id for c in read_commits(copies[0])} == {c.unit_id for c in read_commits(copies[1])}


def test_detections_of_another_model_or_other_chunks_are_not_taken_for_these(
    config, archive, model, tmp_path
):
    evaluate_model(config, str(model), str(archive), str(tmp_path / "val"), Wanted(("val",)), runner=HERE)
    wanted = Wanted(("test",), known=(str(tmp_path / "val"), str(tmp_path / "nowhere")))
    found = evaluate_model(config, str(model), str(archive), str(tmp_path / "test"), wanted, runner=HERE)
    assert list(found.sheet.splits) == ["test"]
