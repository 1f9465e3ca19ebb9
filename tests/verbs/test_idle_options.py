"""An option that does nothing in a command is refused, never left aside without a word: whoever typed it takes what comes out for
what it asked for.
"""

import argparse

import pytest

from mast_ray.config.errors import CONFIG
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
    (["inventory", "{p}", "--image-scale", "seconds=10"], ["--image-scale", "add --annotations TABLES"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "words"), IDLE, ids=lambda value: " ".join(value) if isinstance(value[0], str) else ""
)
def test_an_option_that_does_nothing_is_refused(typed, words, tmp_path, capsys):
    assert main([part.replace("{p}", str(tmp_path)) for part in typed]) == CONFIG
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) <= 3 and "would do nothing here" in said
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
