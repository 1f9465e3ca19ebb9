"""Names from labels to the last table, with a detector that has learned nothing: its boxes and embeddings will do."""

import json

import pyarrow.compute as pc
import pytest
from study_archive import make_study_archive, write_fresh_detector

from mast_ray.reporting.detection_tables import read_detections
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # runs a network
KNOBS = ("--recipe", "tiny", "--set", "evaluate.max_detections=20", "--set", "evaluate.bootstrap=50")


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """(folder, text that classify printed)"""
    root = tmp_path_factory.mktemp("named")
    prepared = make_study_archive(root)
    write_fresh_detector(root / "model", prepared)
    return root


def test_names_go_from_labels_into_every_table(named, capsys):
    root, model = named, str(named / "model")
    assert run_verb("classify", [model, str(root / "prepared"), *KNOBS]) == 0
    said = capsys.readouterr().out
    assert "2 labels from" in said and "untrained label unknown" in said
    document = json.loads((root / "model" / "names.json").read_text())
    assert document["labels"] == [
        "high",
        "low",
    ]  # two tones, 900 and 4200 Hz: the band alone tells them apart
    assert max(max(ways.values()) for ways in document["held_out"]["top_1"].values()) == 1.0

    out = str(root / "detections")
    assert run_verb("detect", [model, str(root / "archive"), "--out", out, "--runner", "here", *KNOBS]) == 0
    found = read_detections(out)
    assert set(found.column("label").to_pylist()) <= {"high", "low", "unknown"}
    assert found.column("label").null_count == 0 and "embedding" not in found.column_names
    chance = found.column("label_score")
    assert pc.min(chance).as_py() >= 0 and pc.max(chance).as_py() <= 1

    assert run_verb("summarise", [out, "--threshold", "0.05", "--out", str(root / "summary")]) == 0
    head, *_ = (root / "summary" / "calls_by_label_and_hour.csv").read_text().splitlines()
    assert head.replace('"', "").startswith(
        "site,label,hour,num_recordings,effort_h,calls,calls_per_hour,low_95"
    )
    assert run_verb("export", [out, "--to", "csv", "--out", str(root / "csv")]) == 0
    first = next((root / "csv").rglob("*.csv")).read_text().splitlines()[0]
    assert "label_score" in first
    assert (
        run_verb("report", [str(root), "--audio", str(root / "archive"), "--out", str(root / "r.html")]) == 0
    )
    page = (root / "r.html").read_text()
    assert "median label score" in page


def test_every_species_has_figures_and_a_row_of_mistakes(named, capsys):
    model, prepared = str(named / "model"), str(named / "prepared")
    if not (named / "model" / "names.json").exists():
        assert run_verb("classify", [model, prepared, *KNOBS]) == 0
    out = named / "scores"
    argv = [model, prepared, "--by", "label", "--out", str(out), "--runner", "here", *KNOBS]
    assert run_verb("evaluate", argv) == 0
    said = capsys.readouterr().out
    assert "found calls have their right name" in said
    rows = [row for row in json.loads((out / "metrics.json").read_text())["rows"] if row["by"] == "label"]
    assert {row["cell"] for row in rows} >= {"high", "low"} and {row["unit"] for row in rows} == {"recording"}
    assert all("precision" in row["figures"] for row in rows)
    assert {row["label"] for row in json.loads((out / "confusion.json").read_text())} >= {"high", "low"}
    assert run_verb("evaluate", argv) == 0  # read back
    assert "found calls have their right name" in capsys.readouterr().out


def test_mistakes_are_told_before_the_work(named, capsys):
    prepared = str(named / "prepared")
    assert run_verb("classify", ["shipped:tiny", prepared]) == 2
    assert "--out" in capsys.readouterr().err
    assert run_verb("classify", [str(named / "model"), prepared, "--out", prepared]) == 3
    assert "holds the output of `prepare`" in capsys.readouterr().err
    assert not (named / "prepared" / "card.json").exists()
    assert run_verb("classify", [str(named / "model"), prepared, "--unknown-below", "7"]) == 2
    trained = write_fresh_detector(named / "trained", named / "prepared")
    before = (trained / "card.json").read_bytes()
    assert run_verb("classify", ["shipped:tiny", prepared, "--out", str(trained), *KNOBS]) == 3
    assert "another detector, which would be lost" in capsys.readouterr().err
    assert (trained / "card.json").read_bytes() == before and not (trained / "names.json").exists()
    other = ["--set", "detect.embeddings=projection"]
    if not (named / "model" / "names.json").exists():
        assert run_verb("classify", [str(named / "model"), prepared, *KNOBS]) == 0
    argv = [str(named / "model"), str(named / "archive"), "--out", str(named / "no"), "--runner", "here"]
    assert run_verb("detect", [*argv, *KNOBS, *other]) == 2
    assert "mast classify MODEL ARCHIVE --embedding projection" in capsys.readouterr().err
