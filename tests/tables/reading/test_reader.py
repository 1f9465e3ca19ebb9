"""The training reader: right values, right boxes, one global order for any number of workers, resumable."""

import time

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import torch

from mast_ray.boxes.batch import pad_boxes
from mast_ray.config.errors import ConfigError, DataError
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.tables.reading.chunk_sets import BoxTable, box_table, chunks_of_blocks, chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.tables.reading.sample_order import places_of


def everything(prepared):
    rows = np.arange(len(prepared.recordings))
    return chunks_of_blocks(prepared, rows, np.zeros(len(rows)), np.full(len(rows), 1e9))


def ids_of(batches):
    return [chunk for batch in batches for chunk in batch.chunk_ids]


def test_values_are_the_log_mel_of_the_recording_up_to_half_a_step(prepared, noise_archive):
    reader = ChunkReader(prepared, everything(prepared), batch_size=16, num_threads=2)
    rid_of = dict(zip(prepared.recordings["path"].to_pylist(), prepared.recording_ids, strict=True))
    wanted = {rid_of["S0/S0_20240503_120000.wav"]: "S0/S0_20240503_120000.wav"}
    checked = 0
    truth = {
        rid: LogMel().frames(soundfile.read(noise_archive / path, dtype="float32")[0])
        for rid, path in wanted.items()
    }
    for batch in reader.sequential():
        for place, chunk_id in enumerate(batch.chunk_ids):
            rid, _, k = chunk_id.partition(":")
            if rid not in truth:
                continue
            frames = truth[rid][512 * int(k) : 512 * int(k) + 1024]
            valid = int(batch.valid_frames[place])
            assert valid == len(frames)
            scale, offset = float(batch.scale[place]), float(batch.offset[place])
            values = offset + scale * batch.values[place].numpy()[:valid].astype(np.float32)
            assert np.abs(values - frames).max() <= 0.51 * scale
            checked += 1
    assert checked == 78  # 400 s: one chunk every 5.12 s, across every border of row groups


def test_sequential_reads_every_chunk_once_on_any_number_of_workers(prepared):
    reader = ChunkReader(prepared, everything(prepared), batch_size=7, num_threads=2)
    whole = ids_of(reader.sequential())
    parts = [chunk for rank in range(3) for chunk in ids_of(reader.sequential(rank, 3))]
    assert whole == parts
    assert sorted(whole) == sorted(everything(prepared).ids(prepared))


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 7, 11, 16])
def test_global_batches_do_not_depend_on_the_number_of_workers(prepared, world_size):
    reader = ChunkReader(prepared, everything(prepared), batch_size=16, lanes=8, seed=3, num_threads=2)
    alone = [dict(zip(b.sample_index.tolist(), b.chunk_ids, strict=True)) for b in reader.epoch(2)]
    shared = [{} for _ in alone]
    for rank in range(world_size):
        for step, batch in enumerate(reader.epoch(2, rank, world_size)):
            assert 16 // world_size <= len(batch) <= -(-16 // world_size)
            shared[step].update(zip(batch.sample_index.tolist(), batch.chunk_ids, strict=True))
    assert alone == shared


def test_an_epoch_resumed_at_a_step_goes_on_with_the_very_same_batches(prepared):
    reader = ChunkReader(
        prepared, everything(prepared), batch_size=8, lanes=4, seed=1, num_threads=2, shuffle_chunks=32
    )
    whole = list(reader.epoch(5))
    for start in (1, 4, len(whole) - 1):
        rest = list(reader.epoch(5, start_step=start))
        assert ids_of(rest) == ids_of(whole[start:])
        assert all(torch.equal(a.values, b.values) for a, b in zip(rest, whole[start:], strict=True))
        assert torch.equal(rest[0].sample_index, whole[start].sample_index)


def test_epochs_differ_and_each_holds_no_chunk_twice(prepared):
    reader = ChunkReader(prepared, everything(prepared), batch_size=8, seed=0, num_threads=2)
    first, second = ids_of(reader.epoch(0)), ids_of(reader.epoch(1))
    assert first != second
    assert len(set(first)) == len(first) == reader.steps_per_epoch * 8


def test_a_set_smaller_than_a_batch_is_repeated_to_fill_it(prepared):
    few = everything(prepared).take(np.arange(3))
    reader = ChunkReader(prepared, few, batch_size=8, lanes=4, num_threads=2)
    (batch,) = list(reader.epoch(0))
    assert len(batch) == 8 and set(batch.chunk_ids) == set(few.ids(prepared))


def test_a_long_recording_is_mixed_with_others_inside_a_batch(prepared):
    reader = ChunkReader(prepared, everything(prepared), batch_size=16, seed=0, num_threads=2)
    long_id = prepared.recording_ids[
        prepared.recordings["path"].to_pylist().index("S0/S0_20240503_120000.wav")
    ]
    first = next(iter(reader.epoch(0)))
    places = sorted(int(c.partition(":")[2]) for c in first.chunk_ids if c.startswith(long_id))
    assert np.diff(places).max() > 1  # not a run of neighbours


def test_boxes_come_with_the_chunks_they_touch_clipped(prepared):
    # 4.9 to 6.2 s is frames 490 to 620: chunk 0 holds it whole, chunk 1 (from frame 512) its last 108 frames
    reader = ChunkReader(
        prepared, chunks_of_split(prepared, "train", "val", "test"), prepared.labels, num_threads=2
    )
    seen = {}
    for batch in reader.sequential():
        for place, chunk_id in enumerate(batch.chunk_ids):
            corners = batch.boxes.corners[place][batch.boxes.is_object[place]]
            seen[chunk_id] = [(row[0], row[2]) for row in corners.tolist()]
    path_of = dict(zip(prepared.recording_ids, prepared.recordings["path"].to_pylist(), strict=True))
    short = [rid for rid, path in path_of.items() if path.endswith("_060000.wav")]
    assert all(seen[f"{rid}:0"] == [(490.0, 620.0)] for rid in short)
    assert all(seen[f"{rid}:1"] == [(0.0, 108.0)] for rid in short)
    assert all(seen[f"{rid}:2"] == [] for rid in short)


def test_a_box_at_the_end_of_one_recording_never_reaches_the_next(prepared):
    chunks = everything(prepared)
    labels = pa.table(
        {
            "recording_id": prepared.recording_ids,
            "begin_s": [19.9] * len(prepared.recordings),
            "end_s": [60.0] * len(prepared.recordings),
            "low_hz": [1000.0] * len(prepared.recordings),
            "high_hz": [2000.0] * len(prepared.recordings),
            "score": pa.array([1.0] * len(prepared.recordings), pa.float32()),
        }
    )
    boxes = box_table(prepared, chunks, labels)
    at_start = boxes.counts()[chunks.chunk == 0]
    assert (at_start == 0).all()


def test_time_only_labels_become_ignore_regions_over_the_whole_band(prepared):
    labels = pa.table(
        {
            "recording_id": prepared.recording_ids[:1],
            "begin_s": [1.0], "end_s": [2.0],
            "low_hz": pa.array([None], pa.float64()), "high_hz": pa.array([None], pa.float64()),
            "score": pa.array([1.0], pa.float32()),
        }
    )  # fmt: skip
    boxes = box_table(prepared, everything(prepared), labels).padded(np.array([0]))
    assert boxes.is_ignored[0].tolist()[:1] == [True] and not boxes.is_object.any()
    assert boxes.corners[0, 0].tolist() == [100.0, 0.0, 200.0, 128.0]


def test_padding_without_a_loop_gives_what_pad_boxes_gives():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 12, 20)
    start = np.concatenate(([0], np.cumsum(counts)))
    corners = rng.random((start[-1], 4)).astype(np.float32)
    ignored = rng.random(start[-1]) < 0.3
    none = np.zeros(start[-1], bool)
    table = BoxTable(start, corners, ignored, none, np.arange(start[-1]), np.ones(start[-1], np.float32))
    chunks = rng.permutation(20)[:7]
    spans = [slice(start[c], start[c + 1]) for c in chunks]
    expected = pad_boxes(
        [torch.from_numpy(corners[s][~ignored[s]]) for s in spans],
        [torch.from_numpy(corners[s][ignored[s]]) for s in spans],
    )
    padded = table.padded(chunks)
    assert torch.equal(padded.corners, expected.corners)
    assert torch.equal(padded.is_object, expected.is_object) and torch.equal(
        padded.is_ignored, expected.is_ignored
    )


def test_a_batch_that_is_still_held_is_never_overwritten(prepared):
    reader = ChunkReader(prepared, everything(prepared), batch_size=8, num_threads=2)
    held = [(batch, batch.values[1:3], batch.values.clone()) for batch in reader.epoch(0)]
    for batch, view, copy in held:
        assert torch.equal(batch.values, copy) and torch.equal(view, copy[1:3])
    del batch, copy
    views = [view for _, view, _ in held]
    copies = [view.clone() for view in views]
    del held, view
    for _ in reader.epoch(1):
        pass
    assert all(torch.equal(view, copy) for view, copy in zip(views, copies, strict=True))


def test_a_cached_set_gives_the_same_batches_as_an_uncached_one(prepared):
    batches = [
        list(
            ChunkReader(prepared, everything(prepared), batch_size=8, cache_bytes=cache, num_threads=2).epoch(
                0
            )
        )
        for cache in (0, 1 << 30)
    ]
    assert all(torch.equal(a.values, b.values) for a, b in zip(*batches, strict=True))


def test_more_workers_than_chunks_in_a_batch_are_refused_with_a_remedy(prepared):
    reader = ChunkReader(prepared, everything(prepared), batch_size=16, lanes=8)
    with pytest.raises(ConfigError, match="shared by 17 workers:\nuse at most 16"):
        next(iter(reader.epoch(0, 0, 17)))


def test_eight_seven_three_and_eight_workers_take_the_same_samples_in_the_same_order(prepared):
    """A batch of 8 whose 8 lanes are whole for eight workers, and shared for seven and three."""
    reader = ChunkReader(prepared, everything(prepared), batch_size=8, lanes=8, seed=1, num_threads=1)
    whole = [dict(zip(b.sample_index.tolist(), b.chunk_ids, strict=True)) for b in reader.epoch(0)]
    seen, stops = [], [(8, 0, 2), (7, 2, 4), (3, 4, 6), (8, 6, len(whole))]
    for world_size, start, stop in stops:
        shares = [
            list(reader.epoch(0, rank, world_size, start))[: stop - start] for rank in range(world_size)
        ]
        for step in range(stop - start):
            batch = {}
            for share in shares:
                batch |= dict(zip(share[step].sample_index.tolist(), share[step].chunk_ids, strict=True))
            seen.append(batch)
    assert seen == whole


def test_places_of_a_batch_by_hand():
    # 6 chunks in 3 lanes of two: three workers have a lane each, two share the middle one, four take one or two chunks
    assert [places_of(6, 3, rank, 3) for rank in range(3)] == [[range(0, 2)], [range(2, 4)], [range(4, 6)]]
    assert [places_of(6, 3, rank, 2) for rank in range(2)] == [
        [range(0, 2), range(2, 3)],
        [range(3, 4), range(4, 6)],
    ]
    assert [places_of(6, 3, rank, 4) for rank in range(4)] == [
        [range(0, 1)],
        [range(1, 2), range(2, 3)],
        [range(3, 4)],
        [range(4, 6)],
    ]


def test_an_iterator_left_in_its_last_batches_ends_too(prepared):
    import threading

    few = everything(prepared).take(np.arange(16))
    batches = ChunkReader(prepared, few, batch_size=4, num_threads=2).sequential()
    next(batches)
    until_s = time.monotonic() + 20
    while any(t.name.startswith("blocks") for t in threading.enumerate()):  # all is read: three batches wait
        assert time.monotonic() < until_s
        threading.Event().wait(0.01)
    leaving = threading.Thread(target=batches.close, daemon=True)
    leaving.start()
    leaving.join(10)
    assert not leaving.is_alive()


def test_an_iterator_left_early_stops_its_threads(prepared):
    import threading

    reader = ChunkReader(prepared, everything(prepared), batch_size=4, num_threads=2)
    iterator = iter(reader.epoch(0))
    next(iterator)
    iterator.close()
    assert not [t for t in threading.enumerate() if t.name.startswith(("chunk-reader", "blocks"))]


def test_an_unknown_split_is_an_error_that_names_those_there_are(prepared):
    with pytest.raises(DataError, match="train"):
        chunks_of_split(prepared, "site_ood")
