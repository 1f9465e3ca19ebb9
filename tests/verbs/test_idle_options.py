"""An option that does nothing in a command is refused, never left aside without a word: whoever typed it takes what comes out for
what it asked for.
"""

import argparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mast_ray.config.errors import CONFIG, DATA
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs.idle_options import typed_options
from mast_ray.verbs.main import main

IDLE = [
    # (what was typed, words of the message)
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--threshold", "0.9"], ["--threshold", "--boxes TABLE"]),
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--boxes", "labels", "--threshold", "0.9"], ["--threshold", "--boxes TABLE"]),
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--what", "chunks", "--threshold", "0.9"], ["--threshold", "--what chunks"]),
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--what", "chunks", "--min-members", "5", "--background", "subtract"],
     ["--min-members, --background", "--what chunks"]),
    (["evaluate", "--verdicts", "v.csv", "--split", "test", "--by", "site"], ["--split, --by", "verdicts alone"]),
    (["evaluate", "--verdicts", "v.csv", "--iou", "0.3"], ["--iou", "verdicts alone"]),
    (["evaluate", "--detections", "d.csv", "--annotations", "a.csv", "--tune-annotations", "b.csv"], ["--tune-annotations", "--tune-on TABLE"]),
    (["calibrate", "{p}", "--out", "{p}/o", "--precision", "0.9"], ["--precision", "add --verdicts CSV"]),
    (["calibrate", "{p}", "--out", "{p}/o", "--model", "{p}", "--method", "platt"], ["--method, --model", "add --verdicts CSV"]),
    (["calibrate", "{p}", "--verdicts", "v.csv", "--size", "50"], ["--size", "drawn already"]),
    (["classify", "{p}", "{p}", "--precision", "0.9", "--unknown-below", "0.5"], ["--unknown-below", "give one of them"]),
    (["plan", "--inventory", "i.json", "--hours", "10", "--gigabytes", "3"], ["--hours, --gigabytes", "--inventory says it"]),
    (["label-budget", "{p}", "--out", "{p}/o", "--num", "20", "--formats", "raven"], ["--num, --formats", "mast label-budget plan "]),
    (["label-budget", "plan", "{p}", "--out", "{p}/o", "--budgets", "25", "--seeds", "2"], ["--budgets, --seeds", "learning curves"]),
    (["label-budget", "plan", "{p}", "--out", "{p}/o", "--threshold", "0.4"], ["--threshold", "add --detections TABLE"]),
    (["label-budget", "plan", "{p}", "--out", "{p}/o", "--detections", "d", "--threshold", "0.4", "--model", "m"], ["--model", "--threshold gives"]),
    (["label-budget", "plan", "{p}", "--out", "{p}/o", "--detections", "d", "--strategy", "coverage"], ["--detections", "--strategy coverage"]),
    (["detect", "{p}", "--out", "{p}/o", "--yes"], ["--yes", "--forget-missing"]),
    (["detect", "{p}", "--out", "{p}/o", "--forget-missing", "--yes", "--dry-run"], ["--dry-run", "only deletes"]),
    (["compare", "{p}", "--out", "{p}/o", "--methods", "mast,fcos", "--audiomae", "a.pth"], ["--audiomae", "--methods"]),
    (["compare", "{p}", "--out", "{p}/o", "--methods", "fcos,detr", "--encoder", "e"], ["--encoder", "none of fcos, detr starts from it"]),
    (["prepare", "{p}", "--out", "{p}/o", "--columns", "file=name", "--skip-missing"], ["--columns", "add --annotations TABLES"]),
    (["prepare", "{p}", "--out", "{p}/o", "--skip-missing"], ["--skip-missing", "add --annotations TABLES"]),
    (["export", "d.parquet", "--to", "csv", "--out", "{p}/o", "--begin-path", "/audio"], ["--begin-path", "--to raven"]),
    (["export", "d.parquet", "--to", "csv", "--out", "{p}/o", "--recordings", "r.parquet", "--audio", "a"], ["--audio", "--recordings says"]),
    (["export", "d.parquet", "--to", "raven", "--out", "{p}/o", "--bom"], ["--bom", "csv, kaleidoscope, pamdp"]),
    (["export", "d.parquet", "--to", "audacity", "--out", "{p}/o", "--per", "site"], ["--per", "audacity has no files of sites"]),
    (["show", "a.wav", "-o", "{p}/x.png", "--annotations", "t.csv", "--threshold", "0.5"], ["--threshold", "--detections TABLE"]),
    (["review", "{p}", "--export", "{p}/o", "--plan", "plan.csv", "--open"], ["--plan, --open", "do not serve"]),
    (["review", "{p}", "--import", "{p}/o", "--reviewer", "Ana", "--port", "8000"], ["--port", "do not serve"]),
    (["review", "{p}", "--import", "{p}/o", "--reviewer", "Ana", "--as", "aoef"], ["--as", "--export DIR"]),
    (["review", "{p}", "--import", "{p}/i", "--reviewer", "Ana", "--export", "{p}/o"], ["--export", "one after the other"]),
    (["synth", "--out", "{p}/o", "--hours", "0.01", "--sites", "1", "--unseen-sites", "1"], ["--unseen-sites", "--sites 2"]),
    (["train", "{p}", "--out", "{p}/o", "--start", "scratch", "--detector", "d"], ["--detector", "--start scratch begins with fresh weights"]),
    (["prepare", "{p}", "--out", "{p}/o", "--dry-run", "--verify"], ["--verify", "--dry-run reads no results"]),
    (["detect", "{p}", "--out", "{p}/o", "--dry-run", "--verify"], ["--verify", "--dry-run reads no results"]),
    (["train", "{p}", "--out", "{p}/o", "--labels", "expert", "--pseudo-labels", "{p}"], ["--pseudo-labels", "the experts' boxes alone"]),
    (["train", "{p}", "--out", "{p}/o", "--detector", shipped_model("tiny"), "--encoder", "e"], ["--encoder", "give one of them"]),
    (["inventory", "{p}", "--image-scale", "seconds=10"], ["--image-scale", "add --annotations TABLES"]),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "words"), IDLE, ids=[" ".join(map(str, typed)) for typed, _ in IDLE])
def test_an_option_that_does_nothing_is_refused(typed, words, tmp_path, capsys):
    assert main([str(part).replace("{p}", str(tmp_path)) for part in typed]) == CONFIG
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) <= 3 and "would do nothing" in said
    for word in words:
        assert word in said, said
    assert not list(tmp_path.iterdir())


def test_what_was_typed_is_known_also_where_it_is_the_default():
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--name", default="")
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--columns", nargs="+", default=[])
    parser.add_argument("--yes", action="store_true")
    assert typed_options(parser, ["here"]) == {"place"}
    assert typed_options(parser, ["here", "--size", "200", "--yes"]) == {"place", "size", "yes"}
    assert typed_options(parser, ["--also", "a", "--also", "b", "here"]) == {"place", "also"}
    assert typed_options(parser, ["here", "--name=", "--columns", "a=b"]) == {"place", "name", "columns"}
    assert parser.parse_args(["here"]).also == []


def test_a_price_without_a_gpu_is_told(tmp_path, capsys):
    typed = [
        "--audio",
        str(tmp_path / "none"),
        "--annotations",
        "t.csv",
        "--out",
        str(tmp_path / "o"),
        "--price",
        "4",
    ]
    assert main(["run", *typed, "--runner", "here", "--set", "cluster.use_gpu=no"]) == DATA
    assert "--price is left aside: there is no GPU to pay for" in capsys.readouterr().out


def test_times_that_cannot_be_restated_are_told(tmp_path, capsys):
    """Detections and scores without recordings: nothing says when these were made, and the zone changed nothing."""
    row = {"recording_id": "a", "path": "a.wav", "begin_s": 1.0, "end_s": 2.0, "score": 0.5}
    pq.write_table(pa.Table.from_pylist([row], schema=DETECTIONS), tmp_path / "d.parquet")
    zone = ["--timezone", "Asia/Makassar"]
    table = str(tmp_path / "d.parquet")
    assert main(["export", table, "--to", "csv", "--out", str(tmp_path / "o"), *zone]) == DATA
    assert "give --recordings or --audio as well" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty"), "--detections", table, *zone]) == DATA
    assert (
        "no recordings whose times and sites --timezone and --table could restate" in capsys.readouterr().err
    )
    assert not (tmp_path / "o").exists() and not list((tmp_path / "empty").iterdir())
