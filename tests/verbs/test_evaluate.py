"""`mast evaluate` and `mast calibrate` as a user meets them: files in, figures and exit codes out."""

import csv
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_archive import make_prepared
from synthetic_model import write_tiny_detector

from mast_ray.evaluation.score_sheet import ScoreSheet
from mast_ray.tables.schemas import DETECTIONS, IGNORED, LABELS, RECORDINGS
from mast_ray.verbs.main import main, run_verb

RAVEN = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tBegin Path\tFile Offset (s)\tSpecies\n"
BIRDNET = "Start (s),End (s),Scientific name,Common name,Confidence,File\n"


def raven_table(path, rows):
    lines = [
        f"{n}\tSpectrogram 1\t1\t{b}\t{e}\t{lo}\t{hi}\t{file}\t{b}\tx\n"
        for n, (file, b, e, lo, hi) in enumerate(rows, 1)
    ]
    path.write_text(RAVEN + "".join(lines))
    return str(path)


def between(detections, annotations):
    return "--detections", str(detections), "--annotations", str(annotations)


@pytest.fixture
def truth(tmp_path):
    """Six recordings with two calls each."""
    rows = [(f"card/rec{n}.wav", b, b + 3.0, 1000, 3000) for n in range(6) for b in (0.0, 12.0)]
    return raven_table(tmp_path / "truth.txt", rows)


@pytest.fixture
def found(tmp_path):
    """Detections of the first call in every recording, and a false alarm in every other, as our own table."""
    rows = []
    for n in range(6):
        shared = {"recording_id": f"id{n}", "path": f"rec{n}.wav", "site": "=A" if n < 3 else "B"}
        rows.append(
            shared | {"begin_s": 0.0, "end_s": 3.0, "low_hz": 1000.0, "high_hz": 3000.0, "score": 0.9}
        )
        if n % 2:
            rows.append(
                shared | {"begin_s": 30.0, "end_s": 31.0, "low_hz": 500.0, "high_hz": 900.0, "score": 0.4}
            )
    pq.write_table(pa.Table.from_pylist(rows, schema=DETECTIONS), tmp_path / "found.parquet")
    return str(tmp_path / "found.parquet")


def test_own_detections_against_a_raven_table_with_intervals_and_files(truth, found, tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(
            [
                "evaluate",
                "--detections",
                found,
                "--annotations",
                truth,
                "--by",
                "site,duration",
                "--out",
                str(out),
                "--set",
                "evaluate.bootstrap=50",
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "12 annotations, 9 detections, 6 right" in text and "recall         0.500 [0.254, 0.746]w" in text
    assert "Wilson's" in text  # every recording holds two calls, one of them found: 6 of 12
    sheet = ScoreSheet.from_json((out / "metrics.json").read_bytes())
    whole = sheet.whole("", "recording")
    assert whole.figures["precision"].estimate == pytest.approx(6 / 9) and whole.num_recordings == 6
    assert sheet.threshold == (0.0, "none", "")
    outcome = pq.read_table(out / "outcomes.parquet").column("outcome").to_pylist()
    assert (outcome.count("hit"), outcome.count("false_alarm"), outcome.count("miss")) == (6, 3, 6)
    rows = list(csv.DictReader((out / "figures.csv").open()))
    sites = {
        row["cell"]: float(row["estimate"])
        for row in rows
        if row["by"] == "site" and row["figure"] == "precision"
    }
    assert sites == {
        "'=A": pytest.approx(3 / 4, abs=1e-5),
        "B": pytest.approx(3 / 5, abs=1e-5),
    }  # no formula in a CSV
    curve = list(csv.DictReader((out / "thresholds.csv").open()))
    assert [float(row["threshold"]) for row in curve] == pytest.approx([0.4, 0.9], abs=1e-5)


def test_annotated_recordings_that_were_not_searched_are_named(truth, found, tmp_path, capsys):
    folder = tmp_path / "found"
    (folder / "detections").mkdir(parents=True)
    shutil.copy(found, folder / "detections/all.parquet")
    for num_searched, said in ((6, ""), (4, "2 annotated recordings (e.g. card/rec4.wav)")):
        rows = [{"recording_id": f"id{n}", "path": f"rec{n}.wav"} for n in range(num_searched)]
        pq.write_table(pa.Table.from_pylist(rows, schema=RECORDINGS), folder / "recordings.parquet")
        assert main(["evaluate", *between(folder, truth)]) == 0
        warned = capsys.readouterr().err
        assert ("warning" in warned) == bool(said) and said in warned
    assert "4 calls in them count as missed" in warned


def test_threshold_tuned_on_another_table_is_frozen(truth, found, tmp_path, capsys):
    assert (
        main(["evaluate", *between(found, truth), "--tune-on", found, "--set", "evaluate.bootstrap=20"]) == 0
    )
    captured = capsys.readouterr()
    assert "score >= 0.65" in captured.out and "6 detections, 6 right" in captured.out
    assert "too good" in captured.err  # tuned on what it scores


def test_birdnet_csv_without_frequencies_is_scored_by_time(truth, tmp_path, capsys):
    rows = [
        f"{b},{b + 3.0},Troglodytes troglodytes,Wren,{c},rec{n}.wav\n"
        for n in range(6)
        for b, c in ((0.0, 0.8), (21.0, 0.3))
    ]
    table = tmp_path / "birdnet.csv"
    table.write_text(BIRDNET + "".join(rows))
    assert (
        main(["evaluate", *between(table, truth), "--threshold", "0.5", "--set", "evaluate.bootstrap=20"])
        == 0
    )
    assert "12 annotations, 6 detections, 6 right" in capsys.readouterr().out


def test_labels_and_recordings_of_a_folder_know_which_recordings_were_listened_to(tmp_path, capsys):
    recordings = [
        {"recording_id": f"id{n}", "path": f"rec{n}.wav", "duration_s": 60.0, "is_annotated": n < 2}
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(recordings, schema=RECORDINGS), tmp_path / "recordings.parquet")
    label = {"recording_id": "id0", "begin_s": 1.0, "end_s": 2.0, "low_hz": 1000.0, "high_hz": 2000.0}
    pq.write_table(pa.Table.from_pylist([label], schema=LABELS), tmp_path / "labels.parquet")
    region = {"recording_id": "id1", "begin_s": 30.0, "end_s": 60.0}  # nobody looked there
    pq.write_table(pa.Table.from_pylist([region], schema=IGNORED), tmp_path / "ignored.parquet")
    rows = [label | {"recording_id": f"id{n}", "score": 0.9} for n in range(3)]
    rows.append(rows[1] | {"begin_s": 40.0, "end_s": 41.0})
    pq.write_table(pa.Table.from_pylist(rows, schema=DETECTIONS), tmp_path / "d.parquet")
    assert (
        main(
            [
                "evaluate",
                *between(tmp_path / "d.parquet", tmp_path / "labels.parquet"),
                "--set",
                "evaluate.bootstrap=20",
            ]
        )
        == 0
    )
    captured = capsys.readouterr()
    assert (
        "2 recordings, matched per recording" in captured.out
        and "1 annotations, 2 detections, 1 right" in captured.out
    )
    assert "left out 1 detections in recordings that are not annotated or not in the split" in captured.err
    assert "left out 1 detections where nobody looked or was sure" in captured.err


def test_events_without_a_band_are_said_to_be_in_no_line_of_the_bandwidths(tmp_path, capsys):
    """One label of three has no frequencies; no table knows a clock, and only for that is there a remedy."""
    table = tmp_path / "table.csv"
    rows = ["a.wav,1,2,1000,2000,0.9", "a.wav,3,4,1000,2000,0.8", "a.wav,5,6,,,0.7"]
    table.write_text("\n".join(["file,begin_s,end_s,low_hz,high_hz,score", *rows]) + "\n")
    assert main(["evaluate", *between(table, table), "--by", "bandwidth,hour,label"]) == 0
    said = capsys.readouterr().err
    assert "the bandwidth of 1 of 3 annotations and 1 of 3 detections is not known" in said
    assert "note: the hour of no event is known: give --recordings\n" in said
    assert "note: the label of no event is known\n" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{d}", "nowhere.parquet", "{a}", "{truth}"], 3, "does not exist"),
        (["{d}", "{found}", "{a}", "nowhere.txt"], 3, "does not exist"),
        ([], 2, "mast evaluate MODEL PREPARED"),
        (["{found}", "{truth}"], 3, "mast evaluate --detections {found} --annotations {truth}"),
        (["{found}"], 2, "mast evaluate {found} PREPARED"),
        (["{d}", "{found}"], 2, "--annotations is missing"),
        (["{d}", "{found}", "{a}", "{truth}", "--threshold", "nan"], 2, "--threshold nan is no score"),
        (["{a}", "{truth}"], 2, "--detections is missing"),
        (
            ["model", "prepared", "{d}", "{found}", "{a}", "{truth}"],
            2,
            "model and tables cannot be scored in one command",
        ),
        (["model", "prepared", "--verdicts", "v.csv"], 2, "mast evaluate --verdicts CSV"),
        (["{d}", "{found}", "{a}", "{truth}", "--against", "model"], 2, "--against belongs to a model"),
        (["shipped:energy", "prepared", "--against", "{truth}"], 3, "--against takes a second model"),
        (["--verdicts", "{truth}"], 2, "no column `verdict`"),
        (["{d}", "{found}", "{a}", "{truth}", "--by", "colour"], 2, "choose from"),
        (["{d}", "{found}", "{a}", "{truth}", "--iou", "2"], 2, "--iou"),
        (["{d}", "{found}", "{a}", "{truth}", "--threshold", "0.5", "--tune-on", "{found}"], 2, "exclude"),
        (["{d}", "{found}", "{a}", "{truth}", "--split", "test"], 2, "prepared"),
    ],
)
def test_mistakes_end_in_three_lines_and_their_exit_code(arguments, code, words, truth, found, capsys):
    names = {"truth": truth, "found": found, "d": "--detections", "a": "--annotations"}
    assert main(["evaluate", *(a.format(**names) for a in arguments)]) == code
    message = capsys.readouterr().err
    assert (
        words.format(**names) in message
        and "Traceback" not in message
        and len(message.strip().splitlines()) <= 3
    )


def test_verdicts_saved_from_the_report_give_precision_with_limits(tmp_path, capsys):
    path = tmp_path / "verdicts.csv"
    rows = [
        f"{n:016x},a.wav,{n},{n + 1},1000,2000,0.{9 - n % 5},{'n' if n % 5 == 4 else 'y'}" for n in range(20)
    ]
    header = "detection_id,path,begin_s,end_s,low_hz,high_hz,score,verdict"
    path.write_text("\n".join([header, *rows, "ff,a.wav,1,2,1,2,0.5,"]) + "\n")
    assert main(["evaluate", "--verdicts", str(path), "--out", str(tmp_path / "v")]) == 0
    captured = capsys.readouterr()
    # Wilson limits of 16 of 20.
    assert "precision 0.800 [0.584, 0.919]  (16 right of 20 judged, 1 undecided)" in captured.out
    assert "not drawn at random" in captured.err
    assert json.loads((tmp_path / "v" / "verdicts.json").read_text())["num_right"] == 16
    path.write_text(f"{header}\nff,a.wav,1,2,1,2,0.5,maybe\n")
    assert main(["evaluate", "--verdicts", str(path)]) == 3
    assert "line 2" in capsys.readouterr().err


def test_calibrate_draws_a_sheet_and_turns_its_verdicts_into_a_threshold(tmp_path, capsys):
    rng = np.random.default_rng(0)
    score = rng.uniform(0.02, 0.98, 1500).astype(np.float32)
    rows = [
        {"recording_id": f"id{n % 9}", "path": f"rec{n % 9}.wav", "site": "AB"[n % 2], "begin_s": float(n), "end_s": n + 1.0,
         "low_hz": 1000.0, "high_hz": 2000.0, "score": float(s), "start_utc": 1_700_000_000_000_000 + n * 60_000_000,
         "utc_offset_s": 0}
        for n, s in enumerate(score)
    ]  # fmt: skip
    table = str(tmp_path / "d.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema=DETECTIONS), table)
    assert main(["calibrate", table, "--out", str(tmp_path), "--size", "240"]) == 0
    assert (
        main(["calibrate", table, "--out", str(tmp_path), "--size", "240"]) == 2
    )  # verdicts are never overwritten
    sheet = list(csv.DictReader((tmp_path / "review.csv").open()))
    assert len(sheet) == 240 and {row["site"] for row in sheet} == {"A", "B"} and sheet[0]["hour"] != ""
    for row in sheet:  # right with the probability of the score
        row["verdict"] = "y" if rng.random() < float(row["score"]) else "n"
    with (tmp_path / "review.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, sheet[0].keys())
        writer.writeheader()
        writer.writerows(sheet)
    capsys.readouterr()
    out = tmp_path / "calibrated"
    arguments = [
        "calibrate",
        table,
        "--verdicts",
        str(tmp_path / "review.csv"),
        "--precision",
        "0.7",
        "--out",
        str(out),
    ]
    assert main(arguments) == 0
    assert "240 verdicts" in capsys.readouterr().out
    document = json.loads((out / "calibration.json").read_text())
    threshold = document["recommended_threshold"]
    assert score[score >= threshold].mean() >= 0.7  # the mean score is the true precision here
    assert document["calibration"]["slope"] == pytest.approx(1.0, abs=0.3)
    curve = list(csv.DictReader((out / "precision.csv").open()))
    inside = [
        float(r["low"]) <= score[score >= float(r["threshold"])].mean() <= float(r["high"])
        for r in curve
        if r["low"]
    ]
    assert np.mean(inside) > 0.8


def test_calibrate_refuses_a_sheet_of_other_detections(tmp_path, capsys):
    rows = [
        {"recording_id": "r", "path": "a.wav", "begin_s": n + 0.25, "end_s": n + 1.0, "score": (n + 1) / 41}
        | ({} if n % 2 else {"low_hz": 1000.0, "high_hz": 2000.0})
        for n in range(40)
    ]
    moved = [row | {"begin_s": row["begin_s"] + 0.1} for row in rows[:15]] + rows[15:]
    for name, some in (("one", rows), ("two", moved)):
        pq.write_table(pa.Table.from_pylist(some, schema=DETECTIONS), tmp_path / f"{name}.parquet")
    one, two, sheet = (str(tmp_path / name) for name in ("one.parquet", "two.parquet", "judged.csv"))
    assert main(["calibrate", one, "--out", str(tmp_path), "--size", "40"]) == 0
    drawn = list(csv.DictReader((tmp_path / "review.csv").open()))

    def judged(some, left_out=()):
        columns = [name for name in drawn[0] if name not in left_out]
        with (tmp_path / "judged.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row | {"verdict": "yn"[n % 2]} for n, row in enumerate(some))
        capsys.readouterr()

    judged(drawn)
    assert main(["calibrate", one, "--verdicts", sheet]) == 0
    assert main(["calibrate", two, "--verdicts", sheet, "--model", str(tmp_path / "never read")]) == 3
    error = capsys.readouterr().err
    assert f"15 of 40 rows of {sheet} are no detections of {two}" in error
    assert f"mast calibrate {two} --out DIR" in error and len(error.strip().splitlines()) <= 3
    nowhere, curve = str(tmp_path / "nowhere"), tmp_path / "curve"
    assert main(["calibrate", one, "--verdicts", sheet, "--model", nowhere, "--out", str(curve)]) == 3
    assert "no card.json" in capsys.readouterr().err and not curve.exists()  # before the curve, not after it
    judged(drawn, left_out=("detection_id",))  # a sheet of before
    assert main(["calibrate", two, "--verdicts", sheet]) == 0
    judged(
        [row | {"detection_id": "1234567890123450"} for row in drawn]
    )  # what a spreadsheet makes of digits
    assert main(["calibrate", two, "--verdicts", sheet]) == 0


def test_calibrate_refuses_verdicts_that_were_chosen_rather_than_drawn(found, tmp_path, capsys):
    path = tmp_path / "verdicts.csv"
    path.write_text("path,score,verdict\n" + "a.wav,0.5,y\n" * 20)
    assert main(["calibrate", found, "--verdicts", str(path)]) == 3
    assert "not drawn" in capsys.readouterr().err


CSV = "file,begin_s,end_s,low_hz,high_hz,label\n"


def evaluated(tmp_path, capsys, found, truth, *argv):
    """(annotations, detections, right) of the first figures on the screen, and what was said beside them."""
    (tmp_path / "f.csv").write_text(found)
    (tmp_path / "t.csv").write_text(truth)
    argv = [
        "evaluate",
        "--detections",
        str(tmp_path / "f.csv"),
        "--annotations",
        str(tmp_path / "t.csv"),
        *argv,
    ]
    assert main([*argv, "--set", "evaluate.bootstrap=10"]) == 0
    captured = capsys.readouterr()
    match = re.search(r"(\d+) annotations, (\d+) detections, (\d+) right", captured.out)
    return tuple(map(int, match.groups())), captured.err


def test_annotation_files_are_read_as_prepare_reads_them(tmp_path, capsys):
    truth = (
        CSV
        + "a.wav,1,2,1000,2000,wren\na.wav,1.000001,2,1000,2000,wren\na.wav,5,6,1000,2000,noise\na.wav,8,9,1000,2000,?\n"
    )
    found = CSV + "a.wav,1,2,1000,2000,\na.wav,5,6,1000,2000,\na.wav,8,9,1000,2000,\n"
    # the box that stands twice is one, noise is no call, and what nobody was sure of counts neither way
    figures, said = evaluated(tmp_path, capsys, found, truth)
    assert figures == (1, 2, 1)
    assert "stand twice" in said and "noise 1" in said and "1 uncertain" in said
    figures, _ = evaluated(tmp_path, capsys, found, truth, "--set", "labels.no_animal=keep")
    assert figures == (3, 3, 3)
    figures, _ = evaluated(tmp_path, capsys, found, truth, "--set", "labels.uncertain=[noise]")
    assert figures == (1, 1, 1)


def test_a_table_of_short_narrow_calls_is_right_against_itself(tmp_path):
    """On whole frames and bins a call of 15 ms lies up to a frame beside itself."""
    rows = [
        (f"rec{n}.wav", b + 0.0137 * n, b + 0.0137 * n + 0.015, 5000, 5100) for n in range(6) for b in (1, 2)
    ]
    table = raven_table(tmp_path / "same.txt", rows)
    assert main(["evaluate", *between(table, table), "--out", str(tmp_path / "out")]) == 0
    (row,) = ScoreSheet.from_json((tmp_path / "out/metrics.json").read_bytes()).rows
    assert (row.num_truth, row.num_detections, row.num_true_positives) == (12, 12, 12)
    assert row.figures["mean_iou"].estimate == pytest.approx(1.0)


def test_lines_of_the_detections_that_cannot_be_read_are_named(tmp_path, capsys):
    bad = "".join(f"a.wav,{n},x,1000,2000,\n" for n in range(7))
    figures, said = evaluated(
        tmp_path, capsys, CSV + "a.wav,1,2,1000,2000,\n" + bad, CSV + "a.wav,1,2,1000,2000,\n"
    )
    assert figures == (1, 1, 1)
    assert said.count("'x' is not a number") == 5 and "7 rows or files cannot be used" in said


def test_outside_what_was_listened_to_nothing_is_a_false_alarm(tmp_path, capsys):
    truth = "file,begin_s,end_s,low_hz,high_hz,clip_start_s,clip_end_s\na.wav,1,2,1000,2000,0,10\n"
    found = CSV + "a.wav,1,2,1000,2000,\na.wav,5,6,1000,2000,\na.wav,50,51,1000,2000,\n"
    assert evaluated(tmp_path, capsys, found, truth)[0] == (1, 2, 1)


def test_boxes_of_three_second_tools_over_the_whole_spectrum_are_matched_in_time(tmp_path, capsys):
    truth = CSV + "a.wav,0,3,2000,4000,wren\na.wav,6.5,9,2000,4000,wren\na.wav,15,18,2000,4000,wren\n"
    found = CSV + "a.wav,0,3,0,15000,wren\na.wav,6,9,0,15000,wren\na.wav,12,15,0,15000,wren\n"
    figures, said = evaluated(tmp_path, capsys, found, truth)
    assert figures == (3, 3, 2) and "span the whole spectrum" in said
    banded = found.replace("0,15000", "2000,4000", 1)  # one box with a band: a tool that knows bands
    assert evaluated(tmp_path, capsys, banded, truth)[0] == (3, 3, 1)


def test_columns_are_mapped_on_the_side_that_has_them(tmp_path, capsys):
    found = "clip,t0,t1,f0,f1,p\na.wav,1,2,1000,2000,0.9\n"
    names = ("file=clip", "begin_s=t0", "end_s=t1", "low_hz=f0", "high_hz=f1", "score=p")
    figures, _ = evaluated(tmp_path, capsys, found, CSV + "a.wav,1,2,1000,2000,wren\n", "--columns", *names)
    assert figures == (1, 1, 1)
    argv = ["evaluate", "--detections", str(tmp_path / "t.csv"), "--annotations", str(tmp_path / "t.csv")]
    assert main([*argv, "--columns", "file=clip"]) == 2
    assert "neither table has the columns clip" in capsys.readouterr().err


def test_a_model_in_a_store_is_looked_for_at_the_endpoint_of_the_settings(monkeypatch):
    """It was looked for at the default one, which a store of one's own does not answer for."""
    from mast_ray.storage.storage import open_storage
    from mast_ray.verbs import evaluate

    asked = []

    def opened(uri, settings=None):
        asked.append((uri, settings.endpoint_url if settings else ""))
        return open_storage("/nowhere")

    monkeypatch.setattr(evaluate, "open_storage", opened)
    argv = [
        "s3://b/model",
        "s3://b/prepared",
        "--out",
        "o",
        "--set",
        "storage.endpoint_url=http://127.0.0.1:9",
    ]
    assert run_verb("evaluate", argv) == 3
    assert asked == [("s3://b/model", "http://127.0.0.1:9")]


@pytest.mark.parametrize("idle", [("--space", "hertz"), ("--unlisted", "silent")])
def test_how_tables_are_compared_is_refused_for_detections_of_chunks(tmp_path, capsys, idle):
    """They were scored in mel space, in annotated recordings alone, whatever was asked for."""
    row = {"recording_id": "a", "path": "a.wav", "chunk": 0, "begin_s": 1.0, "end_s": 2.0, "score": 0.5}
    pq.write_table(pa.Table.from_pylist([row], schema=DETECTIONS), tmp_path / "d.parquet")
    typed = ["--detections", str(tmp_path / "d.parquet"), "--annotations", str(tmp_path), *idle]
    assert main(["evaluate", *typed]) == 2
    said = capsys.readouterr().err.strip()
    assert "single chunks" in said and said.endswith(f"leave out {idle[0]}")


@pytest.mark.slow  # runs a network
def test_two_models_are_compared_over_the_same_recordings(tmp_path, capsys):
    """`mast compare` trains methods anew; of two finished models there were two sets of intervals and no difference."""
    prepared = make_prepared(tmp_path)
    model = str(write_tiny_detector(tmp_path / "model"))
    argv = [
        "shipped:energy",
        str(prepared),
        "--against",
        model,
        "--out",
        str(tmp_path / "o"),
        "--runner",
        "here",
    ]
    assert run_verb("evaluate", argv) == 0
    sheets = [json.loads((tmp_path / place / "metrics.json").read_text()) for place in ("o/against", "o")]
    one, other = ({row["split"]: row for row in sheet["rows"] if row["unit"] == "chunk"} for sheet in sheets)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{model} -> ")]
    assert len(lines) == len(one) > 0
    for line, split in zip(lines, one, strict=True):
        f1 = [row[split]["figures"]["f1"]["estimate"] for row in (one, other)]
        assert f"({split}, {one[split]['num_truth']} calls): F1 {f1[0]:.3f} -> {f1[1]:.3f}, AP" in line
        assert f"; F1 {f1[1] - f1[0]:+.3f}" in line
