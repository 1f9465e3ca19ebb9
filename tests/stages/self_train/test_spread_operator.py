"""The operator in parts keeps and ignores just what it keeps and ignores of the whole pool in one array."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pseudo_operator import CHUNKS_PER_RECORDING, recordings_table, write_detections, write_prepared

from mast_ray.config.errors import TemporaryError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.evaluation.matching import match
from mast_ray.self_training import pool
from mast_ray.self_training.governor import pool_figures
from mast_ray.self_training.operator import at_threshold, chunk_weights, doubted, in_band, is_valid
from mast_ray.self_training.policies import group_thresholds, is_by_group
from mast_ray.self_training.pool import chunk_groups, pseudo_table, read_pool, site_groups
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.self_train import operator_shards, pseudo_stage, spread_operator
from mast_ray.stages.self_train.operator_shards import LabelWork, WholeTables, added, in_slices
from mast_ray.stages.self_train.operator_task import Teacher, validity_of
from mast_ray.stages.self_train.pseudo_stage import agreement_f1, drawn_places, make_pseudo_labels
from mast_ray.stages.self_train.spread_operator import within
from mast_ray.storage.storage import LocalStorage, open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkRuns, chunks_of_split

TEACHER = Teacher("abc", threshold=0.4, kept_share=0.03, round=2, saturated=0.2)
NUM_CHUNKS = 40 * CHUNKS_PER_RECORDING


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty recordings: two sites with many around some hours, one with a single recording, one of unknown name."""
    folder = tmp_path_factory.mktemp("pool")
    recordings = recordings_table(NUM_CHUNKS)
    site = ["A"] * 18 + ["B"] * 20 + ["C"] + [None]
    start = [datetime(2024, 5, 1, tzinfo=UTC) + timedelta(minutes=20 * (number % 18)) for number in range(40)]
    start[20] += timedelta(hours=15)  # alone in its hour
    for name, values in (("site", site), ("start_utc", [*start[:39], None])):
        place = recordings.schema.get_field_index(name)
        recordings = recordings.set_column(
            place, name, pa.array(values).cast(recordings.schema.field(name).type)
        )
    write_prepared(folder, NUM_CHUNKS, recordings)
    write_detections(folder, NUM_CHUNKS, per_chunk=30, recordings_per_file=3)
    return folder


@pytest.fixture
def small_units(monkeypatch):
    """As many units as a large pool has."""
    monkeypatch.setattr(spread_operator, "ROWS_PER_UNIT", 3_000)
    monkeypatch.setattr(spread_operator, "SCORES_PER_UNIT", 5_000)


def config_of(policy, **knobs):
    knobs = {"policy": policy, "min_group_detections": 400, "empty_chunks": "drop"} | knobs
    return apply_overrides(field(), {f"self_train.{name}": value for name, value in knobs.items()})


def in_one_array(config, prepared, detections, doubts_nested=False):
    """The operator without parts: (table of pseudo-labels, chunks with weights and limits, boxes, thresholds)."""
    knobs, chunks = config.self_train, chunks_of_split(prepared, "pool")
    threshold = knobs.threshold if knobs.policy == "fixed" else TEACHER.threshold
    first_ignored = TEACHER.saturated if knobs.ignore_above == "auto" else float(knobs.ignore_above) or 1.0
    lowest = 0.0 if is_by_group(knobs.policy) else min(threshold, first_ignored)
    found = read_pool(detections, prepared, chunks, 0.0, knobs.nms_overlap)
    found = doubted(found) if doubts_nested else found
    found = found.where(found.score >= lowest)
    is_possible = is_valid(found, validity_of(knobs))
    possible = found.where(is_possible)
    groups = (site_groups if knobs.policy == "precision" else chunk_groups)(prepared, chunks)
    likely = possible
    if knobs.policy == "precision":
        likely = possible.where(possible.score >= TEACHER.saturated)
    chosen = group_thresholds(
        knobs.policy, likely.score, groups.group[likely.chunk], groups.site_of_group, threshold,
        TEACHER.kept_share, knobs.min_group_detections,
    )  # fmt: skip
    limit = chosen.threshold[groups.group]
    low = np.minimum(first_ignored, limit)
    is_object = is_possible & (found.score >= limit[found.chunk])
    ignored = in_band(found, low if knobs.ignore_above else np.full(len(chunks), np.inf), is_object)
    boxes = at_threshold(possible, limit)
    lineage = {"model": "abc", "policy": knobs.policy, "round": "2"}
    table = pseudo_table(prepared, chunks, boxes, limit, lineage, ignored)
    rows, weight = chunk_weights(boxes, knobs.empty_chunks, knobs.empty_weight)
    kept = drawn_places(len(rows), knobs.max_chunks, np.random.default_rng([config.seed, 2, 7]))
    rows, weight = rows[kept], weight[kept]
    ids = np.array(prepared.recording_ids)[chunks.recording[rows]]
    columns = (weight, limit[rows], low[rows])
    listed = [ids.tolist(), chunks.chunk[rows].tolist(), *(c.astype(np.float32).tolist() for c in columns)]
    sources = dict(zip(groups.names, zip(chosen.threshold, chosen.source, strict=True), strict=True))
    return table, listed, boxes, sources


def test_of_more_chunks_than_one_should_shuffle_as_many_are_drawn_each_once(monkeypatch):
    monkeypatch.setattr(pseudo_stage, "MOST_SHUFFLED", 50)
    drawn = drawn_places(1000, 100, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 100 and drawn.min() >= 0 and drawn.max() < 1000
    assert (np.diff(drawn) > 0).all()


def check(folder, tmp_path, config, runner=HERE, doubts_nested=False):
    prepared, detections = open_prepared(folder / "prepared"), open_storage(folder / "detections")
    teacher = replace(TEACHER, doubts_nested=doubts_nested)
    made = make_pseudo_labels(config, prepared, detections, str(tmp_path / "out"), teacher, runner=runner)
    table, listed, boxes, sources = in_one_array(config, prepared, detections, doubts_nested)
    found = pq.read_table(tmp_path / "out" / "pseudo_labels.parquet")
    assert found.equals(table) and found.schema.metadata[b"policy"] == config.self_train.policy.encode()
    chunks = pq.read_table(tmp_path / "out" / "pseudo_chunks.parquet")
    assert [column.to_pylist() for column in chunks.columns] == listed
    said = {
        row["group"]: (row["threshold"], row["source"])
        for row in json.loads((tmp_path / "out" / "figures.json").read_text())["thresholds"]
    }
    assert said == sources
    expected = pool_figures(boxes)
    assert made.figures["figures"] == pytest.approx(vars(expected))
    read_back = made.boxes_of(made.chunks)
    assert read_back.chunk.tolist() == np.sort(boxes.chunk).tolist()
    assert not list((tmp_path / "out").glob("work/**/*.parquet"))
    return made, sources


@pytest.mark.parametrize("policy", ["fixed", "precision", "per_group_quantile"])
def test_a_teacher_that_doubts_boxes_within_better_ones_labels_so(folder, tmp_path, policy, small_units):
    config = config_of(policy, ignore_above=0.1)
    made, _ = check(folder, tmp_path / "doubting", config, doubts_nested=True)
    plain, _ = check(folder, tmp_path / "plain", config)
    own, other = (sum(len(part.score) for part in one.stretches()) for one in (made, plain))
    assert (0 < own < other) if policy == "fixed" else own > 0


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("fixed", {"threshold": 0.3}),
        ("tuned", {"ignore_above": "0.1", "empty_chunks": "negative"}),
        ("precision_pool", {"ignore_above": "auto", "max_chunks": 50}),
        ("per_group_quantile", {}),
        ("per_group_quantile", {"ignore_above": "0.3", "min_group_detections": 300}),
        ("per_group_mixture", {"empty_chunks": "negative", "max_chunks": 200}),
        ("precision", {"min_group_detections": 100}),
    ],
)
def test_parts_give_what_one_array_gives(folder, tmp_path, small_units, policy, knobs):
    _, sources = check(folder, tmp_path, config_of(policy, **knobs))
    if policy == "per_group_quantile" and not knobs:  # every fallback was met
        assert {source for _, source in sources.values()} == {"group", "site", "pool"}


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("tuned", {"ignore_above": "0.1", "empty_chunks": "negative", "max_chunks": 100}),
        ("per_group_quantile", {}),
        ("precision", {"min_group_detections": 100}),
    ],
)
def test_large_files_are_worked_on_in_slices(folder, tmp_path, small_units, monkeypatch, policy, knobs):
    large, most = tmp_path / "large", []
    write_detections(large, NUM_CHUNKS, per_chunk=30, recordings_per_file=25)  # 8,250 and 4,950 rows
    for path in large.rglob("*.parquet"):
        pq.write_table(pq.read_table(path), path, row_group_size=700)  # some begin within a chunk
    (large / "prepared").symlink_to(folder / "prepared")
    read = operator_shards.read_pool
    monkeypatch.setattr(
        operator_shards, "read_pool", lambda *places, **names: most.append(len(places[2])) or read(*places, **names)
    )  # fmt: skip
    monkeypatch.setattr(operator_shards, "ROWS_AT_ONCE", 2_000)
    monkeypatch.setattr(pool, "ROWS_AT_ONCE", 2_000)
    monkeypatch.setattr(operator_shards, "ROWS_PER_GROUP", 100)
    made, _ = check(large, tmp_path, config_of(policy, **knobs))
    # 8,250 rows of 275 chunks in 5 slices of 55, 4,950 of 165 in 3
    assert most == [55] * 8 * (1 + is_by_group(policy))
    whole = made.boxes_of(made.chunks).chunk
    assert np.concatenate([part.chunk for part in made.stretches()]).tolist() == whole.tolist()
    ends = [(part.chunk.min(), part.chunk.max()) for part in made.stretches() if len(part.chunk)]
    assert all(low > high for (_, high), (low, _) in pairwise(ends))  # whole chunks


@pytest.mark.parametrize("ignore_above, is_said", [(0.3, True), (0.2, True), (0.1, False), (0.0, False)])
def test_a_band_that_would_begin_above_every_threshold_is_said_to_be_none(
    folder, tmp_path, caplog, ignore_above, is_said
):
    check(folder, tmp_path, config_of("fixed", threshold=0.2, ignore_above=ignore_above))
    said = [record.getMessage() for record in caplog.records if "ignore_above" in record.getMessage()]
    assert bool(said) == is_said
    if is_said:
        assert f"self_train.ignore_above={ignore_above}" in said[0] and "from 0.200 on" in said[0]


def test_slices_are_equally_many_chunks_and_cut_no_stretch():
    spans = ChunkRuns(np.array([2, 0, 1, 0]), np.array([0, 6, 0, 0]), np.array([6, 3, 5, 6]))
    found = [
        list(zip(some.recording.tolist(), some.first.tolist(), strict=True)) for some in in_slices(spans, 2)
    ]
    assert found == [[(0, 0), (0, 6)], [(1, 0), (2, 0)]]  # 6 + 3 of 20 chunks, then 5 + 6
    assert [len(some) for some in in_slices(spans, 1)] == [20]
    assert [len(some) for some in in_slices(spans, 0)] == [20]


def test_small_tables_share_a_row_group_and_none_lies_in_two(tmp_path, monkeypatch):
    monkeypatch.setattr(operator_shards, "ROWS_PER_GROUP", 4)
    schema = pa.schema([("a", pa.int64())])
    with WholeTables(tmp_path / "a.parquet", schema) as tables:
        for count in (3, 2, 0, 9, 1):
            tables.add(pa.table({"a": pa.array(range(count), pa.int64())}, schema))
    about = pq.read_metadata(tmp_path / "a.parquet")
    assert [about.row_group(number).num_rows for number in range(about.num_row_groups)] == [5, 9, 1]
    assert tables.num_rows == 15


def test_what_is_said_of_slices_is_said_of_their_file():
    said = [
        {"chunks": 3, "score_sum": 0.5, "groups": [("A", 3)]},
        {"chunks": 2, "score_sum": 1.0, "groups": [("B", 2)]},
    ]
    assert added(said) == {"chunks": 5, "score_sum": 1.5, "groups": [("A", 3), ("B", 2)]}


def test_row_groups_are_read_together_up_to_a_size():
    assert within([3, 3, 5, 1, 20, 1], most=6) == [[0, 1], [2, 3], [4], [5]]
    assert within([], most=6) == [[]]


@pytest.mark.ray
@pytest.mark.slow
def test_on_ray_the_parts_are_the_same(folder, tmp_path, small_units, monkeypatch):
    monkeypatch.setattr(spread_operator, "SCORES_PER_UNIT", 10**9)  # sites in one unit: in this process
    check(folder, tmp_path, config_of("per_group_mixture"), ON_RAY)


def test_interrupted_it_goes_on_with_the_parts_that_are_left(folder, tmp_path, small_units, monkeypatch):
    config, done = config_of("per_group_quantile"), []
    work = LabelWork.__call__

    def dies_at_the_third(self, attempt, items):
        if len(done) == 2:
            raise TemporaryError("the store is away")
        done.append(attempt.unit.unit_id)
        return work(self, attempt, items)

    monkeypatch.setattr(LabelWork, "__call__", dies_at_the_third)
    with pytest.raises(TemporaryError):
        check(folder, tmp_path, config)
    again = []
    monkeypatch.setattr(
        LabelWork, "__call__", lambda self, attempt, items: again.append(attempt.unit.unit_id) or work(self, attempt, items)
    )  # fmt: skip
    check(folder, tmp_path, config)
    assert len(done) == 2 and not set(done) & set(again) and len(again) == 3


@pytest.mark.parametrize("num_deleted", [1, 6, 12, 18, 24])
def test_killed_while_its_parts_are_dropped_it_makes_the_missing_ones_again(
    folder, tmp_path, small_units, monkeypatch, num_deleted
):
    config, delete, deleted = config_of("per_group_quantile"), LocalStorage.delete, []

    def dies(self, key):
        if self.url.endswith("/work"):
            if len(deleted) == num_deleted:
                raise KeyboardInterrupt
            deleted.append(key)
        delete(self, key)

    monkeypatch.setattr(LocalStorage, "delete", dies)
    with pytest.raises(KeyboardInterrupt):
        check(folder, tmp_path, config)
    monkeypatch.setattr(LocalStorage, "delete", delete)
    check(folder, tmp_path, config)


def test_agreement_in_stretches_is_that_of_the_whole(folder, tmp_path, small_units):
    first, _ = check(folder, tmp_path / "1", config_of("fixed", threshold=0.2, nms_overlap=0.3))
    second, _ = check(folder, tmp_path / "2", config_of("per_group_quantile", nms_overlap=0.6))
    assert sum(1 for _ in first.stretches()) == 5
    now, before = (made.boxes_of(made.chunks) for made in (second, first))
    hits = match(now.chunk, now.boxes, now.score, before.chunk, before.boxes, 0.5).is_true_positive.sum()
    expected = 2 * hits / (len(now.score) + len(before.score))
    assert agreement_f1(second, first, 0.5) == pytest.approx(expected) and 0 < expected < 1
    assert agreement_f1(first, first, 0.5) == 1.0
