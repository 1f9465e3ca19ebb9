"""The verbs that other tests reach through their functions, typed as a user types
them, on a few minutes of sound.
"""

import json

import pytest

from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow

SHORT = (
    "--recipe", "tiny", "--runner", "here", "--set", "split.ood_sites=[SITE03]", "--set", "pretrain.max_steps=2",
    "--set", "model.adapter=upsampling",  # its steps take less than half as long
    "--set", "detector.max_steps=2", "--set", "self_train.stage1.max_steps=2", "--set", "self_train.stage2.max_steps=2",
    "--set", "self_train.rounds=1", "--set", "evaluate.bootstrap=20",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verbs")
    archive, prepared = folder / "archive", folder / "prepared"
    synth = ("--hours", "0.16", "--minutes", "0.5", "--sites", "3", "--days", "3", "--labelled-share", "0.4",
             "--density", "24")  # fmt: skip
    assert run_verb("synth", ["--out", str(archive), *synth]) == 0
    labelled = ("--annotations", str(archive / "annotations"), "--table", str(archive / "recordings.csv"))
    assert run_verb("prepare", [str(archive / "audio"), *labelled, "--out", str(prepared), *SHORT]) == 0
    assert run_verb("pretrain", [str(prepared), "--out", str(folder / "encoder"), *SHORT]) == 0
    start = ("--encoder", str(folder / "encoder"))
    assert run_verb("train", [str(prepared), *start, "--out", str(folder / "detector"), *SHORT]) == 0
    return folder


def test_pseudo_label_counts_every_chunk_of_the_pool(made, capsys):
    argv = [str(made / "detector"), str(made / "prepared"), "--out", str(made / "pool"), *SHORT]
    assert run_verb("pseudo-label", argv) == 0
    assert json.loads((made / "pool/manifest.json").read_text())["counts"]["rejected_chunks"] == 0
    assert run_verb("pseudo-label", argv) == 0  # nothing left to do


def test_embed_writes_embeddings_neighbours_and_a_map(made):
    argv = [
        str(made / "encoder"),
        str(made / "prepared"),
        "--what",
        "chunks",
        "--map",
        "pca",
        "--out",
        str(made / "near"),
    ]
    assert run_verb("embed", argv) == 0
    assert {"embeddings.parquet", "neighbours.parquet", "map.png"} <= {
        p.name for p in (made / "near").iterdir()
    }


def test_compare_fills_its_tables(made):
    methods = ("--methods", "mast,mast_st", "--seeds", "1", "--encoder", str(made / "encoder"))
    assert (
        run_verb("compare", [str(made / "prepared"), *methods, "--out", str(made / "compared"), *SHORT]) == 0
    )
    written = {path.suffix for path in (made / "compared").iterdir()}
    assert {".md", ".csv", ".tex"} <= written


def test_label_budget_draws_curves_and_plans_what_to_annotate(made):
    grid = ("--budgets", "4", "--strategies", "random", "--seeds", "1", "--encoder", str(made / "encoder"))
    assert (
        run_verb("label-budget", [str(made / "prepared"), *grid, "--out", str(made / "budget"), *SHORT]) == 0
    )
    plan = [
        "plan",
        str(made / "prepared"),
        "--num",
        "3",
        "--strategy",
        "time_balanced",
        "--audio",
        str(made / "archive/audio"),
    ]
    assert run_verb("label-budget", [*plan, "--out", str(made / "next")]) == 0
    assert any((made / "next").rglob("*.txt")) and any((made / "next").rglob("*.wav"))


def test_doctor_says_what_is_missing_here(made, capsys):
    assert run_verb("doctor", ["--folder", str(made), "--storage", str(made)]) == 0
    said = capsys.readouterr().out
    assert "python" in said and "torch" in said and "storage" in said and "disk" in said
