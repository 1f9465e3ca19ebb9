"""The background of a recording is measured when it is prepared, and read with its chunks."""

import shutil

import numpy as np
import pytest
import soundfile
import torch

from mast_ray.boxes.batch import Detections
from mast_ray.config.recipes import field
from mast_ray.inference.window_detector import InferenceKnobs, WindowDetector
from mast_ray.spectrogram.background import LEVEL_STEP, STRETCH_SEGMENTS, Backgrounds
from mast_ray.spectrogram.chunking import SegmentStream
from mast_ray.spectrogram.grid import end_of_sound
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.tables.backgrounds import TABLE, stored_backgrounds, with_background
from mast_ray.tables.dealing.resplit import resplit
from mast_ray.tables.dealing.splits import BlockRow, splits_table
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.tables.statistics import pool_moments


def sound(archive, prepared, recording: int):
    return soundfile.read(archive / prepared.recordings["path"].to_pylist()[recording], dtype="float32")[0]


def test_every_recording_has_the_median_of_its_valid_frames(prepared, noise_archive):
    read = with_background(prepared, "median")
    for recording in range(len(prepared.recording_ids)):
        frames = LogMel().frames(sound(noise_archive, prepared, recording))
        found = read.backgrounds.of_chunks(np.array([recording]), np.array([0]))[0]
        assert np.abs(found - np.median(frames[::4], axis=0)).max() < LEVEL_STEP + 0.02
        assert np.array_equal(found[0], found[1])  # no recording here is longer than two hours


def test_statistics_above_the_background_are_those_of_the_frames_less_their_medians(prepared, noise_archive):
    read = with_background(prepared, "median")
    pool = prepared.recording_ids[2:5]
    rows = [BlockRow(name, 0.0, 1e9, "", name in pool) for name in prepared.recording_ids]
    values = []
    for recording in (2, 3, 4):
        frames = LogMel().frames(sound(noise_archive, prepared, recording))
        values.append(frames - read.backgrounds.of_chunks(np.array([recording]), np.array([0]))[0, 0])
    expected = Moments.of(np.concatenate(values))
    found = pool_moments(stored_backgrounds(prepared), prepared.recordings, splits_table(rows))
    assert found.count == expected.count
    assert found.mean == pytest.approx(expected.mean, abs=1e-5)
    assert found.std == pytest.approx(expected.std, abs=1e-5)
    assert read.normalisation().background == "median"
    assert prepared.normalisation().background == "none"


def test_an_archive_without_the_table_measures_its_stored_frames_and_keeps_them(
    prepared_dir, prepared, tmp_path, caplog
):
    old = tmp_path / "old"
    shutil.copytree(prepared_dir, old)
    (old / TABLE).unlink()
    caplog.set_level("INFO", logger="mast.tables")
    measured = with_background(open_prepared(old), "median").backgrounds
    assert "measured in their stored frames" in caplog.text
    known = with_background(prepared, "median").backgrounds
    assert np.array_equal(measured.first, known.first)
    assert np.abs(measured.levels - known.levels).max() < 0.06  # half a step of a byte
    assert measured.moments.std == pytest.approx(known.moments.std, rel=1e-3)
    caplog.clear()
    again = with_background(open_prepared(old), "median").backgrounds
    assert np.array_equal(again.levels, measured.levels) and not caplog.text


def test_the_reader_hands_the_background_on_only_when_asked(prepared):
    chunks = chunks_of_split(prepared, "pool")
    assert next(ChunkReader(prepared, chunks, batch_size=4, num_threads=1).sequential()).background is None
    read = with_background(prepared, "median")
    reader = ChunkReader(read, chunks, batch_size=4, num_threads=1)
    raw = next(reader.sequential())
    expected = read.backgrounds.of_chunks(reader.chunks.recording[:4], reader.chunks.chunk[:4])
    assert torch.equal(raw.background, torch.from_numpy(expected))
    out = read.normalisation()(raw.values, raw.scale, raw.offset, background=raw.background)
    assert abs(float(out.mean())) < 0.2
    assert with_background(read, "none").backgrounds is None


def test_a_chunk_across_two_hours_has_the_background_of_each():
    levels = np.stack([np.full(128, level, np.float32) for level in (1, 2, 3)])
    backgrounds = Backgrounds(np.array([0, 1, 3]), levels, Moments())
    found = backgrounds.of_chunks(np.array([1, 1, 1, 0]), np.array([0, STRETCH_SEGMENTS - 1, 1500, 900]))
    assert found[:, :, 0].tolist() == [[2, 2], [2, 3], [3, 3], [1, 1]]


def test_another_split_keeps_both_statistics(prepared_dir, tmp_path):
    shutil.copytree(prepared_dir, tmp_path / "again")
    config = field().model_copy(update={"split": field().split.model_copy(update={"ood_sites": ("S1",)})})
    summary = resplit(str(tmp_path / "again"), config)
    opened = open_prepared(tmp_path / "again")
    assert summary.above_background is not None and summary.above_background.count == opened.moments.count
    assert with_background(opened, "median").backgrounds.moments == summary.above_background


class Listener:
    """A detector that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.ends: list[float] = []

    def detect(self, logmel, *_, end_frames):
        self.seen.append(logmel.clone())
        self.ends += end_frames.tolist()
        size = len(logmel)
        return Detections(
            torch.zeros(size, 1, 4), torch.zeros(size, 1), torch.zeros(size, 1, dtype=torch.bool)
        )


@pytest.mark.parametrize("background", ["none", "median"])
def test_detect_shows_a_model_what_training_showed_it(prepared, noise_archive, background):
    read = with_background(prepared, background)
    recordings = np.flatnonzero(prepared.num_chunks > 0)
    listener = Listener()
    windows = WindowDetector(listener, read.normalisation(), "real", InferenceKnobs(batch_size=1))
    for recording in recordings.tolist():
        stream = SegmentStream()
        samples, at = sound(noise_archive, prepared, recording), 0
        for block in [*np.split(samples, range(70_001, len(samples), 70_001)), None]:
            done = stream.finish() if block is None else stream.push(block)
            logmel = np.stack([s.logmel for s in done]) if done else np.zeros((0, 512, 128), np.float32)
            frames = int(prepared.num_frames[recording]) if block is None else None
            windows.push(str(recording), at, logmel, block is None, frames)
            at += len(done)
        windows.flush()
    shown = torch.cat(listener.seen)
    counts = prepared.num_chunks[recordings]
    chunks = ChunkSet(
        np.repeat(recordings, counts).astype(np.int32),
        np.concatenate([np.arange(count) for count in counts]).astype(np.int32),
        np.ones(counts.sum(), np.float32),
    )
    reader = ChunkReader(read, chunks, batch_size=8, num_threads=1)
    order = np.lexsort((reader.chunks.chunk, reader.chunks.recording))
    batches = list(reader.sequential())
    stored = torch.cat(
        [
            read.normalisation()(raw.values, raw.scale, raw.offset, background=raw.background)
            for raw in batches
        ]
    )[torch.from_numpy(order)]
    ends = end_of_sound(torch.cat([raw.valid_frames for raw in batches]))[torch.from_numpy(order)]
    assert listener.ends == ends.tolist() and min(listener.ends) < 1024 < max(listener.ends)
    assert shown.shape == stored.shape
    step = float(prepared.index["scale"].to_numpy().max()) / read.normalisation().denominator
    assert float((shown - stored).abs().max()) <= step / 2 + 0.01


def test_a_rejected_recording_leaves_nothing_behind(prepared):
    read = with_background(prepared, "median")
    listener = Listener()
    windows = WindowDetector(listener, read.normalisation(), "real", InferenceKnobs(batch_size=1))
    windows.push("broken", 0, np.zeros((3, 512, 128), np.float32))
    windows.push("broken", 3, np.zeros((0, 512, 128), np.float32), is_last=True)
    windows.push("good", 0, np.zeros((2, 512, 128), np.float32), is_last=True, num_frames=1022)
    windows.flush()
    assert len(listener.seen) == 1  # the one window of the good one
