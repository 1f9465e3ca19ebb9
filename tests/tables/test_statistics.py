"""Normalisation statistics come from the index and equal those of the frames themselves."""

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from mast_ray.spectrogram.logmel import LogMel
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.tables.dealing.splits import BlockRow, splits_table
from mast_ray.tables.statistics import pool_moments


def frames_of(prepared, archive, rid):
    path = prepared.recordings["path"].to_pylist()[prepared.recording_ids.index(rid)]
    return LogMel().frames(soundfile.read(archive / path, dtype="float32")[0])


def table_of(prepared, pool):
    rows = [BlockRow(rid, *pool.get(rid, (0.0, 1e9)), "", rid in pool) for rid in prepared.recording_ids]
    return splits_table(rows)


def test_statistics_are_those_of_valid_frames_of_pool_recordings_only(prepared, noise_archive):
    pool = prepared.recording_ids[2:5]
    moments = pool_moments(
        prepared.index, prepared.recordings, table_of(prepared, dict.fromkeys(pool, (0.0, 1000000000.0)))
    )
    expected = Moments.of(np.concatenate([frames_of(prepared, noise_archive, rid) for rid in pool]))
    assert moments.count == expected.count
    assert moments.mean == pytest.approx(expected.mean, abs=1e-6)
    assert moments.std == pytest.approx(expected.std, abs=1e-6)


def test_a_block_of_a_recording_counts_its_own_segments(prepared, noise_archive):
    long_id = max(zip(prepared.num_chunks.tolist(), prepared.recording_ids, strict=True))[1]
    block = {long_id: (102.4, 204.8)}  # segments 20 to 39
    moments = pool_moments(prepared.index, prepared.recordings, table_of(prepared, block))
    expected = Moments.of(frames_of(prepared, noise_archive, long_id)[20 * 512 : 40 * 512])
    assert moments.count == expected.count and moments.mean == pytest.approx(expected.mean, abs=1e-6)


def test_an_empty_pool_has_no_statistics(prepared):
    empty = table_of(prepared, {})
    assert pool_moments(prepared.index, prepared.recordings, empty) == Moments()


def test_the_written_statistics_are_those_of_the_pool(prepared):
    again = pool_moments(prepared.index, prepared.recordings, prepared.splits)
    assert again == prepared.moments
    assert isinstance(prepared.index, pa.Table)
