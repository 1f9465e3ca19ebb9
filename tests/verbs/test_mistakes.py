"""Mistakes users make: each gets at most three lines with a remedy and its
documented exit code, never a traceback.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from s3_server import free_port

from mast_ray.config.errors import CONFIG, DATA, INTERRUPTED, TEMPORARY
from mast_ray.storage.storage import LocalStorage
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS
from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with one good recording, some bad company, and annotations that do not fit."""
    root = tmp_path_factory.mktemp("mistakes")
    (root / "audio").mkdir()
    (root / "empty").mkdir()
    (root / "texts").mkdir()
    tone = 0.1 * np.sin(np.arange(16_000 * 12) * 2 * np.pi * 1000 / 16_000)
    soundfile.write(root / "audio" / "A_20240506_040000.wav", tone.astype(np.float32), 16_000)
    (root / "texts" / "notes.txt").write_text("no sound here")
    (root / "foreign.txt").write_text(
        "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tBegin File\n"
        "1\tSpectrogram 1\t1\t0.5\t1.0\t900\t1100\tsomething_else.wav\n"
    )
    (root / "beyond.txt").write_text(
        "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tBegin File\n"
        "1\tSpectrogram 1\t1\t700.5\t701.0\t900\t1100\tA_20240506_040000.wav\n"
    )
    (root / "twins" / "ridge").mkdir(parents=True)
    (root / "twins" / "river").mkdir()
    for folder in ("ridge", "river"):
        soundfile.write(root / "twins" / folder / "20240506_040000.wav", tone.astype(np.float32), 16_000)
    (root / "twin.csv").write_text("file,begin_s,end_s\n20240506_040000.wav,1,2\n")
    (root / "nobody.csv").write_text("begin_s,end_s\n1,2\n")
    (root / "khz.csv").write_text("file,begin_s,end_s,low_hz,high_hz\nA_20240506_040000.wav,1,2,1.9,2.4\n")
    (root / "words.csv").write_text("who,what\nme,nothing\n")
    (root / "evil.yaml").write_text("!!python/object/apply:os.system ['true']\n")
    (root / "typo.yaml").write_text("detector:\n  epoch: 3\n")
    (root / "twice.yaml").write_text(
        "detector:\n  epochs: 3\naugment:\n  bend: 0.5\ndetector:\n  batch_size: 8\n"
    )
    (root / "moved.csv").write_text("site,timezone\nA,Europe/Berlin\nA,Asia/Tokyo\n")
    (root / "list.yaml").write_text("- 1\n- 2\n")
    (root / "not_a_model").mkdir()
    (root / "half_model").mkdir()
    (root / "half_model" / "card.json").write_text(json.dumps({"card_version": 1}))
    (root / "file").write_text("x")
    (root / "begun_run" / "prepared").mkdir(parents=True)
    (root / "begun_run" / "prepared" / "manifest.json").write_text("{}")
    shipped = shipped_model("tiny")
    (root / "edited").mkdir()
    card = json.loads((Path(shipped) / "card.json").read_text())
    (root / "edited" / "card.json").write_text(json.dumps(card | {"calibration": {"steepness": 2}}))
    detection = {"recording_id": "a", "path": "A_20240506_040000.wav", "site": "A", "begin_s": 1.0, "end_s": 2.0, "low_hz": 900.0, "high_hz": 1100.0, "score": 0.5}  # fmt: skip
    recording = {"recording_id": "a", "path": "A_20240506_040000.wav", "site": "A", "duration_s": 12.0, "sample_rate_hz": 16_000}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([detection], schema=DETECTIONS), root / "found.parquet")
    pq.write_table(pa.Table.from_pylist([recording], schema=RECORDINGS), root / "heard.parquet")
    return root


MISTAKES = [
    # (what the user typed, exit code, words of the message)
    (["trian"], CONFIG, ["did you mean `mast train`"]),
    (["config", "--recipe", "feild"], CONFIG, ["feild", "field"]),
    (["config", "--set", "detector.epoch=3"], CONFIG, ["did you mean detector.epochs"]),
    (["config", "--set", "detector.epochs"], CONFIG, ["section.key=value"]),
    (["config", "--set", "detector.epochs=many"], CONFIG, ["detector.epochs", "many"]),
    (["config", "--set", "split.train=1.4"], CONFIG, ["split.train"]),
    (["config", "--set", "split.train=0.9", "--set", "split.val=0.3"], CONFIG, ["more than 1"]),
    (["config", "--set", "model.adapter=deconv"], CONFIG, ["model.adapter", "upsampling"]),
    (["config", "--set", "cluster.num_workers=7"], CONFIG, ["--set pretrain.batch_size=63 --set detector.batch_size=63"]),
    (["config", "--set", "storage.endpoint_url=https://me:secret@host"], CONFIG, ["credential", "environment"]),
    (["config", "--config", "{p}/nothing.yaml"], CONFIG, ["nothing.yaml"]),
    (["config", "--config", "{p}/typo.yaml"], CONFIG, ["did you mean detector.epochs"]),
    (["config", "--config", "{p}/evil.yaml"], CONFIG, ["plain YAML"]),
    (["config", "--config", "{p}/list.yaml"], CONFIG, ["does not hold settings"]),
    (["prepare", "{p}/nowhere", "--out", "{p}/o1", "--runner", "here"], DATA, ["nowhere"]),
    (["prepare", "{p}/empty", "--out", "{p}/o2", "--runner", "here"], DATA, ["empty"]),
    (["prepare", "{p}/texts", "--out", "{p}/o3", "--runner", "here"], DATA, ["texts"]),
    (["prepare", "{p}/audio", "--annotations", "{p}/foreign.txt", "--out", "{p}/o4", "--runner", "here"], DATA, ["something_else"]),
    (["inventory", "{p}/nowhere"], DATA, ["does not exist"]),
    (["inventory", "{p}/audio/A_20240506_040000.wav"], DATA, ["is a file", "folder"]),
    (["plan", "--inventory", "{p}/words.csv"], CONFIG, ["not JSON"]),
    (["learn", "{p}/words.parquet"], DATA, ["without its model", "mast detect"]),
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--boxes", "{p}/found.parquet", "--threshold", "5"], CONFIG, ["--threshold 5.0", "between 0 and 1"]),
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--min-similarity", "nan"], CONFIG, ["--min-similarity", "from -1 to 1"]),
    (["embed", "shipped:tiny", "{p}", "--out", "{p}/o", "--min-margin", "-1"], CONFIG, ["--min-margin 0 or more"]),
    (["plan", "--inventory", "{p}/half_model/card.json"], CONFIG, ["has no hours", "mast inventory"]),
    (["plan", "--hours", "10", "--rates", "{p}/half_model/card.json"], CONFIG, ["card_version", "decode_x_per_core"]),
    (["plan", "--hours", "10", "--gpus", "0"], CONFIG, ["--gpus 0"]),
    (["plan", "--hours", "-5"], CONFIG, ["--hours -5"]),
    (["plan", "--hours", "inf"], CONFIG, ["--hours inf"]),
    (["plan", "--hours", "10", "--gigabytes", "1e400"], CONFIG, ["--gigabytes inf"]),
    (["plan", "--hours", "10", "--gpu-scale", "inf"], CONFIG, ["--gpu-scale inf"]),
    (["plan", "--hours", "10", "--gpu-scale", "0"], CONFIG, ["--gpu-scale 0"]),
    (["prepare", "{p}/twins", "--annotations", "{p}/twin.csv", "--out", "{p}/o4", "--runner", "here"], DATA, ["can be 2 recordings", "ridge/20240506_040000.wav"]),
    (["prepare", "{p}/twins", "--annotations", "{p}/nobody.csv", "--out", "{p}/o4", "--runner", "here"], DATA, ["called like the table nobody.csv", "'file'"]),
    (["prepare", "{p}/audio", "--annotations", "{p}/words.csv", "--out", "{p}/o5", "--runner", "here"], DATA, ["words.csv"]),
    (["prepare", "{p}/audio", "--annotations", "{p}/beyond.txt", "--out", "{p}/o15", "--runner", "here"], DATA, ["700.5 s of 12 s", "several files"]),
    (["prepare", "{p}/audio", "--annotations", "{p}/khz.csv", "--out", "{p}/khz", "--runner", "here"], DATA, ["1.9 to 2.4 Hz", "kHz"]),
    (["prepare", "{p}/audio", "--annotations", "{p}/none.txt", "--out", "{p}/o6", "--runner", "here"], DATA, ["none.txt"]),
    (["prepare", "{p}/audio", "--out", "{p}/o7", "--runner", "here", "--set", "audio.timezone=Makassar"], CONFIG, ["Makassar", "timezone"]),
    (["pretrain", "{p}/not_a_model", "--out", "{p}/o8", "--runner", "here"], DATA, ["prepared"]),
    (["train", "{p}/empty", "--out", "{p}/o9", "--runner", "here"], DATA, ["prepared"]),
    (["detect", "{p}/not_a_model", "{p}/audio", "--out", "{p}/o10", "--runner", "here"], DATA, ["not_a_model", "card.json"]),
    (["detect", "{p}/edited", "{p}/audio", "--out", "{p}/o11", "--runner", "here"], DATA, ["calibration that cannot be used", "steepness", "mast calibrate"]),
    (["detect", "{p}/half_model", "{p}/audio", "--out", "{p}/o11", "--runner", "here"], DATA, ["half_model"]),
    (["evaluate", "--detections", "{p}/none.parquet", "--annotations", "{p}/foreign.txt"], DATA, ["none.parquet"]),
    (["export", "{p}/none.parquet", "--to", "raven", "--out", "{p}/o12"], DATA, ["none.parquet"]),
    (["show", "{p}/audio/missing.wav", "-o", "{p}/x.png"], DATA, ["missing.wav"]),
    (["show", "{p}/file", "-o", "{p}/x.png"], DATA, ["file"]),
    (["show", "{p}/audio/A_20240506_040000.wav", "--start", "nan", "-o", "{p}/x.png"], CONFIG, ["--start nan", "start at 0"]),
    (["report", "{p}/empty"], DATA, ["empty"]),
    (["plan"], CONFIG, ["--hours"]),
    (["synth", "--out", "s3://field/made", "--hours", "0.01"], CONFIG, ["s3://field/made", "this machine"]),
    (["show", "s3://field/a.wav", "-o", "{p}/x.png"], CONFIG, ["s3://field/a.wav", "this machine"]),
    (["demo", "--out", "s3://field/demo"], CONFIG, ["s3://field/demo", "this machine"]),
    (["detect", "{p}/audio", "--out", "s3:/field/found", "--runner", "here"], DATA, ["write s3://BUCKET/PREFIX"]),
    (["evaluate", "--detections", "{p}/found.parquet", "--annotations", "s3://field/boxes.csv"], CONFIG, ["read from this machine"]),
    (["plan", "--hours", "ten"], CONFIG, ["--hours", "ten", "mast plan --help"]),
    (["detect", "{p}/audio"], CONFIG, ["--out", "mast detect --help"]),
    (["prepare", "{p}/audio", "--out", "{p}/o17", "--dataset", "birds"], CONFIG, ["birds", "birdset"]),
    (["detect", "{p}/audio", "--out", "{p}/o17", "--threshold", "30", "--runner", "here"], CONFIG, ["--threshold 30", "between 0 and 1"]),
    (["calibrate", "{p}/found", "--verdicts", "{p}/sheet.csv", "--precision", "90"], CONFIG, ["--precision 90", "from 0 to 1"]),
    (["calibrate", "{p}/found", "--verdicts", "{p}/sheet.csv", "--precision", "-1"], CONFIG, ["--precision -1", "from 0 to 1"]),
    (["calibrate", "{p}/found", "--verdicts", "{p}/sheet.csv", "--model", "shipped:tiny"], CONFIG, ["make a copy", "cp -r ", "tiny my_model"]),
    (["report", "{p}/found", "--threshold", "90"], CONFIG, ["--threshold 90", "between 0 and 1"]),
    (["report", "{p}/found", "--examples", "-3"], CONFIG, ["--examples -3"]),
    (["report", "{p}/found", "--out", "{p}/empty"], CONFIG, ["is a folder", "empty/report.html"]),
    (["summarise", "{p}/found", "--out", "{p}/x", "--bands-hz", "nan", "1000"], DATA, ["--bands-hz", "two rising"]),
    (["label-budget", "plan", "{p}/audio", "--out", "{p}/plan", "--detections", "{p}/found.parquet", "--model", "shipped:tiny"], DATA, ["audio holds no prepared archive"]),
    (["pseudo-label", "shipped:tiny", "{p}/empty", "--out", "{p}/o17", "--runner", "here", "--chunks-per-unit", "-5"], CONFIG, ["--chunks-per-unit -5"]),
    (["inventory", "{p}/audio", "--sample", "-3"], CONFIG, ["--sample -3"]),
    (["train", "{p}/audio", "--out", "{p}/o17", "--runner", "here"], DATA, ["that `mast prepare` wrote"]),
    (["export", "{p}/found.parquet", "--to", "csv", "--out", "{p}/file"], DATA, ["is a file, not a folder"]),
    (["summarise", "{p}/found.parquet", "--recordings", "{p}/heard.parquet", "--out", "{p}/file"], DATA, ["is a file, not a folder"]),
    (["export", "{p}/found.parquet", "--to", "raven", "--audio", "{p}/nowhere", "--out", "{p}/o18"], DATA, ["A_20240506_040000.wav", "folder that was searched"]),
    (["export", "{p}/found.parquet", "--to", "raven", "--audio", "{p}/empty", "--out", "{p}/o18"], DATA, ["A_20240506_040000.wav", "folder that was searched"]),
    (["listen", "{p}/audio", "--out", "{p}/begun_run"], CONFIG, ["holds a run of `mast run`", "another folder"]),
    (["synth", "--out", "{p}/o13", "--hours", "0"], CONFIG, ["hours"]),
    (["synth", "--out", "{p}/o13", "--hours", "nan"], CONFIG, ["--hours nan"]),
    (["synth", "--out", "{p}/o13", "--hours", "0.01", "--seed", "-1"], CONFIG, ["--seed -1", "from 0 on"]),
    (["synth", "--out", "{p}/o13", "--hours", "0.01", "--density", "nan"], CONFIG, ["--density nan"]),
    (["synth", "--out", "{p}/o13", "--hours", "0.01", "--snr-db", "inf"], CONFIG, ["--snr-db inf"]),
    (["summarise", "{p}/found.parquet", "--recordings", "{p}/heard.parquet", "--out", "{p}/o20", "--seed", "-1"], CONFIG, ["--seed -1"]),
    (["synth", "--out", "{p}/o13", "--hours", "0.01", "--damage", "5"], CONFIG, ["--damage 5", "0.05"]),
    (["synth", "--out", "{p}/o13", "--hours", "0.01", "--labelled-share", "25"], CONFIG, ["--labelled-share 25"]),
    (["export", "{p}/found.parquet", "--to", "csv", "--out", "{p}/o19", "--threshold", "30"], CONFIG, ["--threshold 30"]),
    (["summarise", "{p}/found.parquet", "--recordings", "{p}/heard.parquet", "--out", "{p}/o19", "--threshold", "nan"], CONFIG, ["--threshold nan"]),
    (["config", "--config", "{p}/twice.yaml"], CONFIG, ["'detector' in line 1 and again in line 5"]),
    (["inventory", "{p}/audio", "--table", "{p}/moved.csv"], DATA, ["line 3: site 'A' was described before", "a row per file"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    MISTAKES,
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_in_three_lines_with_its_exit_code(typed, code, words, place, capsys):
    argv = [part.replace("{p}", str(place)) for part in typed]
    assert main(argv) == code
    said = capsys.readouterr().err.strip()
    lines = [line for line in said.splitlines() if line.strip()]
    message = [line for line in lines if not line.startswith(("prepare:", "synth:", "detect:"))]
    assert 1 <= len(message) <= 3, said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


def test_a_cluster_that_does_not_answer_is_named_at_once(place, capsys, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    assert main(["prepare", str(place / "audio"), "--out", str(place / "o16")]) == TEMPORARY
    said = capsys.readouterr().err
    assert "no Ray cluster answers at RAY_ADDRESS=127.0.0.1:" in said and "unset RAY_ADDRESS" in said
    assert len(said.strip().splitlines()) <= 3 and "Traceback" not in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errno.ENOSPC, TEMPORARY, "no space left"),
        (errno.EDQUOT, TEMPORARY, "no space left"),  # for this user
        (errno.EACCES, DATA, "no permission for"),
    ],
)
def test_a_full_disk_and_a_locked_folder_are_told_apart(error, code, words, place, capsys, monkeypatch):
    def refuse(self, key, data, *rest, **options):
        raise OSError(error, os.strerror(error), key)

    monkeypatch.setattr(LocalStorage, "write_atomic", refuse)
    typed = ["prepare", str(place / "audio"), "--out", str(place / f"o-{error}"), "--runner", "here"]
    assert main(typed) == code
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and len(said.strip().splitlines()) <= 3


def test_temporary_folders_that_are_all_full_are_said_to_be(place, capsys, monkeypatch):
    """Python says that there is none, as of a path that is wrong."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(place / "no_room")])
    assert main(["prepare", str(place / "audio"), "--out", str(place / "o18")]) == TEMPORARY
    said = capsys.readouterr().err
    assert "no_room" in said and "TMPDIR" in said and len(said.strip().splitlines()) <= 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(place, capsys):
    locked = place / "locked"
    locked.mkdir(mode=0o500)
    assert main(["prepare", str(place / "audio"), "--out", str(locked / "x"), "--runner", "here"]) == DATA
    assert "permission" in capsys.readouterr().err


class Closed(io.StringIO):
    """What `| head` leaves of standard output."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def flush(self) -> None:
        self.write("")


def test_a_reader_that_has_seen_enough_is_told_nothing(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["plan", "--hours", "10"]) == TEMPORARY
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_nor_where_nothing_is_buffered(tmp_path):
    """PYTHONUNBUFFERED, as containers have it: "error: [Errno 32] Broken pipe, run again with --debug"."""
    said = subprocess.run(
        f"{shlex.quote(sys.executable)} -u -m mast_ray plan --hours 10 | true; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == TEMPORARY and said.stderr == ""


def test_debug_shows_the_traceback(place):
    with pytest.raises(Exception, match="prepared"):
        main(["pretrain", str(place / "empty"), "--out", str(place / "o14"), "--debug", "--runner", "here"])


def test_a_schedulers_signal_before_the_work_begins_means_what_it_means_during_it(monkeypatch, capsys):
    monkeypatch.setattr("mast_ray.verbs.main.config_of", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["prepare", "somewhere", "--out", "elsewhere"]) == INTERRUPTED
    assert "run the same command again" in capsys.readouterr().err


def test_letters_that_the_terminal_does_not_have_are_shown_by_their_number(tmp_path):
    """Under a Latin-1 locale a Thai site name ended inventory with a traceback."""
    (tmp_path / "ป่า").mkdir()
    soundfile.write(tmp_path / "ป่า" / "a.wav", np.full(32_000, 0.1, np.float32), 16_000)
    found = subprocess.run(
        [sys.executable, "-m", "mast_ray", "inventory", str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"\\u0e1b\\u0e48\\u0e32 1" in found.stdout


def test_what_libraries_do_at_the_end_of_a_process_does_not_change_its_exit_code(tmp_path):
    lines = (
        "import atexit, ctypes, pathlib, sys",
        "libc = ctypes.CDLL(None)",
        "libc.on_exit(libc.abort, None)",  # as a C++ thread does that nobody joined
        f"atexit.register(pathlib.Path({str(tmp_path / 'left')!r}).touch)",
        "sys.argv = ['mast', '--version']",
        "from mast_ray.verbs.main import main",
        "sys.exit(main())",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert (done.returncode, done.stdout[:5]) == (0, "mast "), done.stderr
    assert (tmp_path / "left").exists()
