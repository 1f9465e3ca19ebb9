"""`mast detect` with a small real model: what it writes opens in the other verbs, and mistakes are named."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from synthetic_model import numbed, write_tiny_detector

from mast_ray.reporting.detection_tables import model_threshold
from mast_ray.verbs.main import run_verb

KNOBS = [
    "--recipe", "tiny", "--runner", "here", "--set", "audio.timezone=Europe/Madrid",
    "--set", "evaluate.max_detections=8", "--set", "detect.batch_size=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("archive")
    import soundfile as sf

    for site in ("North", "South"):
        (root / site).mkdir()
        for hour in (5, 6):
            sound = 0.05 * np.random.default_rng(hour).standard_normal(12 * 22_050)
            sf.write(root / site / f"{site}_20240506_{hour:02d}0000.flac", sound, 22_050)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_detector(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def table(model, archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("table")
    extra = ["--set", "detect.embeddings=projection"]
    assert run_verb("detect", [str(model), str(archive), "--out", str(out), *KNOBS, *extra]) == 0
    return out


def test_the_table_has_calibrated_probabilities_embeddings_and_local_time(table):
    rows = pd.read_parquet(table / "detections")
    assert len(rows) > 0 and set(rows.site) == {"North", "South"} and set(rows.date) == {"2024-05-06"}
    # The card says platt with slope 1 and offset 0: the probability is the score.
    assert rows.probability.to_numpy() == pytest.approx(rows.score.to_numpy(), abs=1e-5)
    assert rows.embedding.map(lambda vector: float((vector**2).sum())).to_numpy() == pytest.approx(
        1.0, abs=5e-3
    )
    assert set(rows.utc_offset_s) == {7200} and rows.start_local.dt.hour.isin([5, 6]).all()
    assert (rows.start_utc.dt.tz_localize(None) + pd.Timedelta(hours=2) == rows.start_local).all()
    assert rows.high_hz.max() <= 8000 and rows.end_s.max() <= 12.0


def test_the_other_verbs_read_what_detect_wrote(table, tmp_path):
    arguments = ["--recordings", str(table), "--out", str(tmp_path / "summary")]
    assert run_verb("summarise", [str(table), *arguments, "--threshold", "0"]) == 0
    calls = pd.read_csv(tmp_path / "summary" / "calls_by_site.csv")
    assert calls.effort_h.sum() == pytest.approx(4 * 12 / 3600, abs=1e-6)
    assert calls.calls.sum() == len(pd.read_parquet(table / "detections"))
    export = [str(table), "--to", "csv", "--out", str(tmp_path / "export")]
    assert run_verb("export", [*export, "--recordings", str(table)]) == 0
    assert any((tmp_path / "export").rglob("*.csv"))


def test_a_calibration_is_in_the_card_then_in_the_table_and_in_the_summary(
    model, archive, table, tmp_path, capsys
):
    own = shutil.copytree(model, tmp_path / "own")
    assert run_verb("calibrate", [str(table), "--out", str(tmp_path / "sheet"), "--size", "24"]) == 0
    sheet = pd.read_csv(tmp_path / "sheet/review.csv")
    sheet["verdict"] = ["y" if n % 4 == 0 else "n" for n in range(len(sheet))]
    sheet.to_csv(tmp_path / "judged.csv", index=False)
    judged = ["calibrate", str(table), "--verdicts", str(tmp_path / "judged.csv"), "--model"]
    other = write_tiny_detector(tmp_path / "other", seed=1)
    assert run_verb(judged[0], [*judged[1:], str(other)]) == 2
    assert "made by another model" in capsys.readouterr().err
    assert run_verb(judged[0], [*judged[1:], str(own)]) == 0
    curve = json.loads((own / "card.json").read_text())["calibration"]
    assert curve["method"] == "platt" and curve["num_examples"] == len(sheet)

    out = tmp_path / "found"
    assert run_verb("detect", [str(own), str(archive), "--out", str(out), *KNOBS]) == 0
    rows = pd.read_parquet(out / "detections")
    logit = np.log(rows.score / (1 - rows.score))
    wanted = 1 / (1 + np.exp(-(curve["slope"] * logit + curve["offset"])))
    assert rows.probability.to_numpy() == pytest.approx(wanted.to_numpy(), abs=1e-5)
    assert run_verb("summarise", [str(out), "--out", str(tmp_path / "summary"), "--threshold", "0"]) == 0
    sites = pd.read_csv(tmp_path / "summary/calls_by_site.csv")
    mean = rows.groupby("site", observed=True).probability.mean()
    assert sites.precision.to_numpy() == pytest.approx(mean[sites.site].to_numpy(), abs=1e-6)
    assert sites.right_per_hour.to_numpy() == pytest.approx(
        (sites.calls_per_hour * sites.precision).to_numpy()
    )
    assert (sites.right_low_95 < sites.right_per_hour).all() and (
        sites.right_high_95 > sites.right_per_hour
    ).all()


def test_show_draws_from_the_folder_that_detect_wrote(archive, table, tmp_path, capsys):
    recording = archive / "North" / "North_20240506_050000.flac"
    shown = [
        "show",
        str(recording),
        "--detections",
        str(table),
        "--seconds",
        "12",
        "-o",
        str(tmp_path / "x.png"),
    ]
    rows = pd.read_parquet(table / "detections")
    own = rows[rows.path == "North/North_20240506_050000.flac"]
    assert len(own) > (own.score >= 0.1).sum()
    for given, least in (["--threshold", "0"], 0.0), ([], 0.1):  # the model's own
        assert run_verb(shown[0], [*shown[1:], *given]) == 0
        assert f"and {(own.score >= least).sum()} detected boxes" in capsys.readouterr().out


def test_the_folder_of_a_run_stands_for_the_detections_in_it(table, tmp_path, capsys):
    """`mast export RUN` wrote every box above the score floor."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "detections").symlink_to(table)
    said = {}
    for name, place in {"run": tmp_path / "run", "own": table}.items():
        assert run_verb("export", [str(place), "--to", "csv", "--out", str(tmp_path / name / "csv")]) == 0
        said[name] = capsys.readouterr().out.splitlines()[0]
        assert run_verb("summarise", [str(place), "--out", str(tmp_path / name / "sums")]) == 0
        capsys.readouterr()
    assert said["run"] == said["own"] and "the model's own threshold" in said["own"]


def test_detections_are_scored_from_the_models_threshold_on(table, tmp_path, capsys):
    truth = tmp_path / "truth.csv"
    truth.write_text("file,begin_s,end_s,low_hz,high_hz\nNorth/North_20240506_050000.flac,1,2,2000,3000\n")
    scored = ["--detections", str(table), "--annotations", str(truth)]
    assert run_verb("evaluate", scored) == 0
    assert "score >= 0.1 (the model's own, frozen)" in capsys.readouterr().out
    assert run_verb("evaluate", [*scored, "--threshold", "0"]) == 0
    assert "score >= 0 (given)" in capsys.readouterr().out


def test_only_what_the_model_itself_would_report_is_counted_unless_asked_otherwise(model, table, tmp_path):
    own = json.loads((model / "card.json").read_text())["score_threshold"]
    score = pd.read_parquet(table / "detections").score
    assert (
        run_verb("summarise", [str(table), "--recordings", str(table), "--out", str(tmp_path / "own")]) == 0
    )
    calls = pd.read_csv(tmp_path / "own" / "calls_by_site.csv").calls.sum()
    assert calls == (score >= own).sum() < len(score)


def test_the_same_command_again_has_nothing_to_do(model, archive, table, capsys):
    extra = ["--set", "detect.embeddings=projection"]
    assert run_verb("detect", [str(model), str(archive), "--out", str(table), *KNOBS, *extra]) == 0
    assert "already done, skipping" in capsys.readouterr().out


def test_a_retuned_threshold_is_taken_over_without_detecting_again(model, archive, table, tmp_path, capsys):
    retuned, out = tmp_path / "model", tmp_path / "table"
    shutil.copytree(model, retuned)
    shutil.copytree(table, out)
    card = json.loads((retuned / "card.json").read_text()) | {"score_threshold": 0.123}
    (retuned / "card.json").write_text(json.dumps(card))
    extra = ["--set", "detect.embeddings=projection"]
    command = [str(retuned), str(archive), "--out", str(out), *KNOBS, *extra]
    assert run_verb("detect", [*command, "--dry-run"]) == 0
    assert model_threshold(str(out)) == model_threshold(str(table))
    assert run_verb("detect", command) == 0
    text = capsys.readouterr().out
    assert "already done, skipping" in text and "own threshold is 0.123 now" in text
    assert model_threshold(str(out)) == 0.123 != model_threshold(str(table))


def test_an_interrupted_run_is_read_by_no_verb_as_if_it_were_whole(archive, table, tmp_path, capsys):
    out, got = tmp_path / "out", str(tmp_path / "got")
    shutil.copytree(table, out)
    shutil.copytree(table, out / "earlier")  # has a manifest of its own
    for name in ("manifest.json", "recordings.parquet", "rejects.parquet"):
        (out / name).unlink()
    sound, run = ["--audio", str(archive)], str(out)
    for verb, *argv in (
        ["export", run, "--to", "csv", "--out", got, *sound],
        ["summarise", run, "--out", got],
        ["report", run, "--out", f"{got}.html"],
        ["report", str(tmp_path), "--out", f"{got}.html"],
        ["calibrate", run, "--out", got],
        ["evaluate", "--detections", run, "--annotations", str(archive)],
        ["review", run, "--export", got, *sound],
        ["learn", run, "--out", got],
        ["show", str(archive / "North/North_20240506_050000.flac"), "--detections", run, "-o", f"{got}.png"],
    ):
        assert run_verb(verb, argv) == 3, verb
        error = capsys.readouterr().err
        assert f"{out} is unfinished" in error and "`mast detect`" in error, verb
        assert len(error.strip().splitlines()) <= 3 and not list(tmp_path.glob("got*")), verb
    file = next((out / "detections").rglob("*.parquet"))
    for place in (out / "earlier", out / "detections", file):
        assert run_verb("export", [str(place), "--to", "csv", "--out", got]) == 0


def test_a_dry_run_prints_inventory_and_plan_and_writes_nothing(model, archive, tmp_path, capsys):
    out = tmp_path / "out"
    assert run_verb("detect", [str(model), str(archive), "--out", str(out), *KNOBS, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "4 recordings" in text and "plan: 1 units, 1 to do" in text
    assert not out.exists()


def test_a_threshold_leaves_weaker_detections_out(model, archive, table, tmp_path):
    scores = pd.read_parquet(table / "detections").score
    middle = float(scores.median())
    arguments = [str(model), str(archive), "--out", str(tmp_path), *KNOBS, "--threshold", str(middle)]
    assert run_verb("detect", arguments) == 0
    kept = pd.read_parquet(tmp_path / "detections").score
    assert kept.min() >= middle and len(kept) == int((scores >= middle).sum())


@pytest.mark.parametrize(("change", "code", "text"), [
    ({"archive": "nowhere"}, 3, "does not exist"),
    ({"model": "nowhere"}, 3, "not a finished model folder"),
    ({"out": "inside"}, 2, "lies inside the archive"),
    ({"table": "missing.csv"}, 3, "no such file"),
])  # fmt: skip
def test_mistakes_are_named_with_their_remedy(model, archive, tmp_path, capsys, change, code, text):
    out = archive / "inside" if "out" in change else tmp_path / "out"
    where = change.get("model", str(model)), change.get("archive", str(archive))
    arguments = [
        *where,
        "--out",
        str(out),
        *KNOBS,
        *(["--table", change["table"]] if "table" in change else []),
    ]
    assert run_verb("detect", arguments) == code
    error = capsys.readouterr().err
    assert text in error and error.strip().count("\n") <= 2


def test_an_autoencoder_is_not_a_detector(model, archive, tmp_path, capsys):
    card = json.loads((model / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(card | {"kind": "autoencoder"}))
    assert run_verb("detect", [str(tmp_path), str(archive), "--out", str(tmp_path / "out"), *KNOBS]) == 2
    assert "mast train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("score_bias", "words"),
    [
        (-20.0, ["found nothing at all in 4 recordings"]),
        (-6.0, ["reaches the threshold 0.1 (the highest score is 0.0352)", "the same boxes everywhere"]),
        (0.0, ["the same boxes everywhere in 4 recordings"]),
    ],
)
def test_a_model_that_finds_nothing_or_the_same_everywhere_is_said_so(
    model, archive, tmp_path, capsys, score_bias, words
):
    blind = numbed(model, tmp_path / "blind", score_bias)
    command = [str(blind), str(archive), "--out", str(tmp_path / "out"), *KNOBS]
    for _ in range(2):  # and again when there is nothing to do
        assert run_verb("detect", command) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
        assert len(said) == len(words)
        assert all(word in line for word, line in zip(words, said, strict=True))
    counts = json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]
    assert [f"warning: {text}" for text in counts["warnings"]] == said


def test_a_model_that_hears_differences_is_not_told_it_does_not(table):
    (weak,) = json.loads((table / "manifest.json").read_text())["counts"]["warnings"]
    assert "reaches the threshold 0.1" in weak  # fresh weights, below the threshold that their card claims


def test_an_archive_of_which_nothing_can_be_read_is_named_by_who_reads_its_table(model, tmp_path, capsys):
    """`listen` stopped at its second step with advice to give the output of `mast detect`, which it was."""
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / "a.wav").write_bytes(b"")
    out = str(tmp_path / "found")
    assert run_verb("detect", [str(model), str(tmp_path / "audio"), "--out", out, "--runner", "here"]) == 4
    capsys.readouterr()
    for verb in (["export", out, "--to", "csv", "--out", "x"], ["summarise", out, "--out", "x"]):
        assert run_verb(verb[0], verb[1:]) == 3
        said = capsys.readouterr().err
        assert "all 1 recordings were rejected: EMPTY_FILE 1" in said and "rejects.parquet" in said
