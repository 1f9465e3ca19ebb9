"""A model folder scored on the splits of a prepared archive."""

import json

import numpy as np
import pyarrow as pa
import pytest
from study_archive import make_study_archive, study_config, write_fresh_detector

from mast_ray.evaluation.metrics import summarise
from mast_ray.inference.validation import Inputs, detect_split
from mast_ray.reporting.report.collect import _metric_tables
from mast_ray.stages.score.scoring import evaluate_model, scores_of_table, stitched_table
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.assembly import load_detector
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # trains or runs a network


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_study_archive(tmp_path_factory.mktemp("study"))


def rows_of(prepared, labels, chunk=None):
    """Detections exactly on some labels; per chunk when one is named."""
    columns = ("recording_id", "begin_s", "end_s", "low_hz", "high_hz")
    empty = dict.fromkeys(DETECTIONS.names)
    rows = [
        empty | {name: label[name] for name in columns} | {"score": 0.9, "chunk": chunk} for label in labels
    ]
    return pa.Table.from_pylist(rows, schema=DETECTIONS)


def test_figures_of_the_table_are_those_of_the_detections_in_frames_and_bins(archive, tmp_path):
    config, prepared = study_config(), open_prepared(archive)
    model = write_fresh_detector(tmp_path / "model", archive)
    scores = evaluate_model(str(model), str(archive), ["val", "site_ood"], config, str(tmp_path / "scores"))
    assert tuple(scores.splits) == tuple(scores.stitched) == ("val", "site_ood")
    assert scores.threshold == 0.05 and "frozen" in scores.threshold_from
    detector, card = load_detector(model)
    reader = ChunkReader(prepared, chunks_of_split(prepared, "site_ood"), prepared.labels, batch_size=8)
    found = detect_split(detector, reader, Inputs(card.normaliser(), "real", "cpu"), config.evaluate)
    direct = summarise(found.matches(), 0.05)
    own = scores.splits["site_ood"].metrics
    assert (own.num_truth, own.num_detections, own.num_true_positives) == (
        direct.num_truth, direct.num_detections, direct.num_true_positives,
    )  # fmt: skip
    assert own.num_detections > 50
    assert scores.splits["site_ood"].num_recordings == 2
    assert own.ap_area == pytest.approx(direct.ap_area, abs=1e-9)
    (shown,) = _metric_tables(json.loads((tmp_path / "scores/metrics.json").read_text()), "metrics.json")
    assert [row[0] for row in shown.rows] == list(scores.splits)
    # A second call reads the stored table: the weights may be gone.
    (model / "weights.safetensors").unlink()
    again = evaluate_model(str(model), str(archive), ["val", "site_ood"], config, str(tmp_path / "scores"))
    assert again.as_dict() == scores.as_dict()


def test_a_call_in_two_chunks_counts_twice_per_chunk_and_once_when_stitched(archive):
    prepared = open_prepared(archive)
    held = {row["recording_id"] for row in prepared.splits.to_pylist() if row["split"] == "site_ood"}
    labels = [row for row in prepared.labels.to_pylist() if row["recording_id"] in held]
    assert len(labels) == 10  # tones at 1, 4, 7, 10 and 13 s of two recordings
    # Chunks begin at 0, 5.12 and 10.24 s: 1 and 4 s are in the first alone, 7 in two,
    # 10 in two or three, 13 in two.
    inside = [
        (label, k)
        for label in labels
        for k in range(3)
        if label["begin_s"] < 5.12 * k + 10.24 and label["end_s"] > 5.12 * k
    ]
    cut = []
    for label, k in inside:
        ends = max(label["begin_s"], 5.12 * k), min(label["end_s"], 5.12 * k + 10.24)
        if ends[1] - ends[0] >= 0.1:
            cut.append((label | {"begin_s": ends[0], "end_s": ends[1]}, k))
    table = pa.concat_tables([rows_of(prepared, [label], k) for label, k in cut])
    scores = scores_of_table(prepared, table, ["site_ood"], study_config(), 0.5)
    per_chunk, stitched = scores.splits["site_ood"].metrics, scores.stitched["site_ood"].metrics
    assert (per_chunk.num_truth, per_chunk.num_true_positives, per_chunk.f1) == (len(cut), len(cut), 1.0)
    assert (stitched.num_truth, stitched.num_detections, stitched.num_true_positives) == (10, 10, 10)
    whole = stitched_table(prepared, table)
    assert whole.column("chunk").null_count == 10
    begun = sorted(set(np.round(whole.column("begin_s").to_numpy(), 2)))
    np.testing.assert_allclose(begun, [1, 4, 7, 10, 13], atol=0.02)


def test_without_a_threshold_it_is_tuned_on_validation_and_said_when_that_found_nothing(archive):
    prepared = open_prepared(archive)
    nothing = rows_of(prepared, [])
    scores = scores_of_table(prepared, nothing, ["val", "test"], study_config(), None)
    assert scores.threshold == 0.5 and "nothing right" in scores.threshold_from
    assert scores.splits["test"].metrics.recall == 0.0
    assert json.loads(json.dumps(scores.as_dict()))["splits"]["test"]["precision"]["estimate"] is None


@pytest.mark.slow
def test_the_verb_scores_a_model_folder_on_the_named_split(archive, tmp_path, capsys):
    model = write_fresh_detector(tmp_path / "model", archive)
    argv = [
        str(model),
        str(archive),
        "--recipe",
        "tiny",
        "--split",
        "temporal_ood",
        "--set",
        "evaluate.bootstrap=20",
    ]
    assert run_verb("evaluate", argv) == 0
    told = capsys.readouterr().out
    assert "temporal_ood" in told and "site_ood" not in told and "stitched" in told
