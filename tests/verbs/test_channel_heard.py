"""What a detector heard in the first channel is looked at and listened to in the first channel."""

import base64
import io
import wave
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.reporting.clips import read_window
from mast_ray.reporting.report.collect import collect_run
from mast_ray.stages.review.found_boxes import channel_of
from mast_ray.stages.review.pictures import WindowPictures
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS
from mast_ray.verbs.main import main

NOW = datetime(2024, 6, 1, tzinfo=UTC)


@pytest.fixture
def detected(tmp_path):
    """A recording whose channels cancel each other, as detected in its first one."""
    tone = 0.3 * np.sin(2 * np.pi * 2000 * np.arange(16_000 * 12) / 16_000)
    (tmp_path / "audio").mkdir()
    soundfile.write(tmp_path / "audio" / "x.wav", np.stack([tone, -tone], axis=1), 16_000)
    stage = tmp_path / "detections"
    (stage / "detections").mkdir(parents=True)
    own = {"recording_id": "r", "path": "x.wav", "site": "A"}
    box = {"begin_s": 5.0, "end_s": 6.0, "low_hz": 1800.0, "high_hz": 2200.0, "score": 0.9}
    pq.write_table(pa.Table.from_pylist([own | box], schema=DETECTIONS), stage / "detections" / "a.parquet")
    pq.write_table(
        pa.Table.from_pylist([own | {"duration_s": 12.0}], schema=RECORDINGS), stage / "recordings.parquet"
    )
    config = apply_overrides(tiny(), {"audio.channel": "first"})
    write_manifest(open_storage(stage), "detect", config, "key", {}, {}, NOW)
    return tmp_path


def loudest(data: bytes) -> float:
    return float(np.abs(soundfile.read(io.BytesIO(data))[0]).max())


def test_the_page_of_a_review_plays_it(detected):
    audio, stage = open_storage(detected / "audio"), str(detected / "detections")
    assert np.abs(read_window(audio, "x.wav", 0.0, 1.0)).max() < 1e-3  # the mean of both is silence
    assert loudest(WindowPictures(audio, channel_of(stage)).sound("x.wav", 5.0, 6.0, None)) > 0.5


def test_the_report_plays_it(detected):
    data = collect_run(open_storage(detected / "detections"), open_storage(detected / "audio"), now=NOW)
    (example,) = data.examples
    assert loudest(base64.b64decode(example.audio_uri.partition(",")[2])) > 0.5


def test_mast_show_draws_and_writes_it(detected):
    out = detected / "x.wav"
    argv = ["show", str(detected / "audio" / "x.wav"), "--detections", str(detected / "detections")]
    assert main([*argv, "-o", str(detected / "x.png"), "--sound", str(out)]) == 0
    with wave.open(str(out)) as file:
        samples = np.frombuffer(file.readframes(16_000), "<i2")
    # what is left of two channels that cancel each other is noise of rounding, however loud it is made
    power = np.abs(np.fft.rfft(samples.astype(float)))
    assert power[2000] > 0.5 * power.sum()
