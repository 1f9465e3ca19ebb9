"""Embeddings of chunks and boxes, and what is read off them."""

import csv
import importlib.util
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from documented import documented_columns
from study_archive import make_study_archive, study_config, write_fresh_detector

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.inference.embeddings import (
    FACTS,
    best_views,
    chunks_to_embed,
    embed_boxes,
    embed_chunks,
    load_embedder,
    vectors_of,
)
from mast_ray.spectrogram.grid import boxes_from_seconds_hertz
from mast_ray.stages.score import embedding_parts
from mast_ray.stages.score.embed import EmbedKnobs, _detections, run_embed
from mast_ray.stages.score.embedding_parts import recording_units
from mast_ray.stages.score.embedding_studies import Abstention, boxes_of, neighbour_table, retrieval_rows
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared, write_table
from mast_ray.tables.reading.chunk_sets import BoxTable
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.files.model_files import read_card, write_card

pytestmark = pytest.mark.slow  # trains or runs a network


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_study_archive(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def model(archive):
    return write_fresh_detector(archive.parent / "model", archive)


@pytest.fixture(scope="module")
def labels(archive, model):
    prepared = open_prepared(archive)
    embedder = load_embedder(str(model), "neck", study_config())
    return embed_boxes(embedder, prepared, prepared.labels, study_config())


def one_chunk(prepared, row):
    chunks = chunks_to_embed(prepared, ())
    at = prepared.recording_ids.index(row["recording_id"])
    wanted = chunks.take((chunks.recording == at) & (chunks.chunk == row["chunk"]))
    return next(ChunkReader(prepared, wanted).sequential())


def test_a_box_is_seen_in_the_chunk_that_shows_most_of_it_most_centrally():
    corners = np.array(
        [[900, 0, 1024, 9], [388, 0, 588, 9], [0, 0, 76, 9], [10, 0, 110, 9], [522, 0, 622, 9], [0, 0, 9, 9]],
        np.float32,
    )
    event = np.array([7, 7, 7, 3, 3, 5])
    ignored = np.array([False] * 5 + [True])
    table = BoxTable(np.array([0, 2, 6]), corners, np.zeros(6, bool), ignored, event, np.ones(6, np.float32))
    # Event 3: both chunks show 100 frames, 572 is nearer to the middle than 60. Event
    # 7: 200 frames in the second box.
    assert best_views(table).tolist() == [4, 1]


def test_every_labelled_box_is_embedded_once_and_equals_the_detectors_own_embedding(archive, model, labels):
    prepared, config = open_prepared(archive), study_config()
    assert labels.column("event").to_pylist() == list(range(len(prepared.labels)))
    assert labels.column("label").to_pylist() == prepared.labels.column("label").to_pylist()
    assert labels.schema.field("embedding").type == pa.list_(pa.float32(), 48)
    # The same box by hand: its chunk read alone, cut on the grid of frames and bins.
    row = 4
    event = labels.slice(row, 1).to_pylist()[0]
    raw = one_chunk(prepared, event)
    shift = event["chunk"] * 5.12
    box, _ = boxes_from_seconds_hertz(
        event["begin_s"] - shift, event["end_s"] - shift, event["low_hz"], event["high_hz"]
    )
    embedder = load_embedder(str(model), "neck", config)
    logmel = embedder.card.normaliser()(raw.values, raw.scale, raw.offset, "real")
    with torch.no_grad():
        wanted = embedder.network.embed_boxes(logmel, torch.from_numpy(box).float()[None], "neck")[0, 0]
    np.testing.assert_allclose(vectors_of(labels)[row], wanted.numpy(), atol=1e-5)


def test_retrieval_figures_on_sonotypes_agree_with_a_brute_force_search(labels):
    boxes = boxes_of(labels)
    gallery = boxes.take(boxes.split == "train")
    rows = {row["split"]: row for row in retrieval_rows(boxes, gallery, "oracle", Abstention(-1.0, 0.0))}
    assert {"test", "temporal_ood", "site_ood", "all held-out"} <= rows.keys()
    for name, row in rows.items():
        ranks = []
        for vector, label, recording, split in zip(
            boxes.vectors, boxes.label, boxes.recording, boxes.split, strict=True
        ):
            if split != name and (name != "all held-out" or split in ("", "train")):
                continue
            best = {}
            for other, told, place in zip(gallery.vectors, gallery.label, gallery.recording, strict=True):
                if place != recording:
                    cosine = float(vector @ other / np.linalg.norm(vector) / np.linalg.norm(other))
                    best[told] = max(best.get(told, -2.0), cosine)
            ranks.append(1 + sum(value > best[label] for value in best.values()))
        assert row["num_queries"] == len(ranks) and row["num_labels"] == 2
        assert row["top_1"] == pytest.approx(np.mean(np.array(ranks) == 1))
        assert row["mean_rank"] == pytest.approx(np.mean(ranks))
        assert row["zero_shot_labelled"] == 1.0 and row["zero_shot_right"] == pytest.approx(row["top_1"])
    # Tones an octave and more apart are told apart even by random features: the search is not asleep.
    assert rows["all held-out"]["top_1"] > 0.9


def test_chunk_embeddings_leave_padding_out_and_count_events_only_where_somebody_looked(archive, model):
    prepared, embedder = open_prepared(archive), load_embedder(str(model), "encoder", study_config())
    table = embed_chunks(embedder, prepared, chunks_to_embed(prepared, ()), study_config())
    rows = table.drop_columns(["embedding"]).to_pylist()
    assert len(rows) == int(prepared.num_chunks.sum())
    assert {row["num_events"] is None for row in rows if row["site"] == "S1"} == {True}
    assert all(row["num_events"] >= 2 for row in rows if row["site"] == "S0")
    assert {row["split"] for row in rows} == {"train", "val", "test", "temporal_ood", "site_ood", ""}
    assert [row["hour"] for row in rows if row["site"] == "S2" and row["chunk"] == 0] == [6.0, 18.0]
    # The last chunk holds 16 - 10.24 s: 574 frames, so tokens that begin at frames 0, 16 .. 560.
    last = next(place for place, row in enumerate(rows) if row["chunk"] == 2)
    raw = one_chunk(prepared, rows[last])
    assert raw.valid_frames.tolist() == [574]
    with torch.no_grad():
        tokens = embedder.network.encoder(
            embedder.card.normaliser()(raw.values, raw.scale, raw.offset, "real")
        )
    np.testing.assert_allclose(vectors_of(table)[last], tokens[0, :, :36].mean(dim=(1, 2)).numpy(), atol=1e-5)


def test_neighbours_never_come_from_the_same_recording(labels):
    boxes = boxes_of(labels)
    table = neighbour_table(boxes, 3).to_pylist()
    assert len(table) == 3 * len(labels)
    assert all(boxes.recording[row["row"]] != boxes.recording[row["neighbour"]] for row in table)
    own = [row["similarity"] for row in table if row["row"] == 0]
    unit = boxes.vectors / np.linalg.norm(boxes.vectors, axis=1, keepdims=True)
    others = np.sort((unit @ unit[0])[boxes.recording != boxes.recording[0]])[::-1]
    np.testing.assert_allclose(own, others[:3], atol=1e-5)


@pytest.mark.slow
def test_the_whole_folder_with_detections_beside_labels(archive, model, tmp_path):
    prepared, config = open_prepared(archive), study_config()
    # Detections that are known: the labels of the test and OOD splits, moved by 20 ms,
    # and one in the middle of nowhere.
    held = {
        row["recording_id"]
        for row in prepared.splits.to_pylist()
        if row["split"] in ("test", "temporal_ood", "site_ood")
    }
    template = dict.fromkeys(DETECTIONS.names)
    rows = [
        template | {k: row[k] for k in ("recording_id", "low_hz", "high_hz")}
        | {"begin_s": row["begin_s"] + 0.02, "end_s": row["end_s"] + 0.02, "score": 0.9}
        for row in prepared.labels.to_pylist() if row["recording_id"] in held
    ]  # fmt: skip
    rows.append(rows[0] | {"begin_s": 2.3, "end_s": 2.8, "low_hz": 6000.0, "high_hz": 7000.0})
    rows.append(rows[0] | {"score": 0.01})
    write_table(open_storage(tmp_path), "detections.parquet", pa.Table.from_pylist(rows, schema=DETECTIONS))
    knobs = EmbedKnobs("boxes", "neck", str(tmp_path / "detections.parquet"), map="pca", min_members=3)
    done = run_embed(config, str(model), str(archive), str(tmp_path / "out"), knobs)
    detected = {row["split"]: row for row in done["retrieval"] if row["boxes"] == "detected"}
    oracle = {row["split"]: row for row in done["retrieval"] if row["boxes"] == "oracle"}
    assert detected["all held-out"]["num_queries"] == len(rows) - 2
    assert oracle["site_ood"]["num_queries"] == detected["site_ood"]["num_queries"] == 10
    assert json.loads((tmp_path / "out/retrieval.json").read_text())[0]["boxes"] == "oracle"
    table = pq.read_table(tmp_path / "out/embeddings.parquet")
    assert (
        table.column("origin").to_pylist().count("detection") == len(rows) - 1
    )  # the faint one is below the threshold
    assert set(table.column_names) == documented_columns("Embeddings") - {"num_events"}  # that is of chunks
    told = list(csv.DictReader((tmp_path / "out/tentative_labels.csv").open()))
    assert len(told) == len(rows) - 1 and {row["nearest_label"] for row in told} <= {"low", "high"}
    assert (tmp_path / "out/map.png").read_bytes().startswith(b"\x89PNG")


def test_detections_of_another_archive_are_told_as_such_and_not_as_boxes_without_a_band(
    archive, tmp_path, caplog
):
    prepared = open_prepared(archive)
    own = {"recording_id": prepared.recording_ids[0], "begin_s": 1.0, "end_s": 2.0, "score": 0.9}
    strange = own | {"recording_id": "0123456789abcdef"}
    for name, rows in (("all", [strange]), ("some", [own, strange])):
        table = pa.Table.from_pylist(
            [dict.fromkeys(DETECTIONS.names) | row for row in rows], schema=DETECTIONS
        )
        write_table(open_storage(tmp_path), f"{name}.parquet", table)
    with pytest.raises(DataError, match=r"none of the 1 detections in .* is of a recording of"):
        _detections(prepared, str(tmp_path / "all.parquet"), 0.5)
    with caplog.at_level("INFO"):
        assert len(_detections(prepared, str(tmp_path / "some.parquet"), 0.5)) == 2  # rows keep their numbers
    assert "1 of 2 detections are of recordings that the archive does not hold" in caplog.text


def test_chunks_embedded_where_boxes_were_leave_nothing_of_them_behind(archive, model, tmp_path):
    """Names, clusters and retrieval of the boxes stayed beside the table and the map of the chunks."""
    config, out = study_config(), tmp_path / "out"
    run_embed(config, str(model), str(archive), str(out), EmbedKnobs(map="pca"))
    of_boxes = {"tentative_labels.csv", "novelty.csv", "retrieval.json", "neighbours.parquet"}
    assert of_boxes <= {path.name for path in out.iterdir()}
    run_embed(config, str(model), str(archive), str(out), EmbedKnobs("chunks", map="pca", neighbours=0))
    assert not of_boxes & {path.name for path in out.iterdir()} and (out / "manifest.json").exists()


@pytest.mark.skipif(importlib.util.find_spec("umap") is not None, reason="umap-learn is installed")
def test_a_map_that_cannot_be_drawn_is_told_before_anything_is_embedded(tmp_path):
    with pytest.raises(ConfigError, match="umap-learn"):
        run_embed(study_config(), "no model", "no archive", str(tmp_path / "out"), EmbedKnobs(map="umap"))


def test_an_encoder_has_no_neck(archive, tmp_path):
    folder = write_fresh_detector(tmp_path / "m", archive)
    card = read_card(folder)
    write_card(open_storage(folder), replace(card, kind="autoencoder"))
    with pytest.raises(ConfigError, match="--name encoder"):
        load_embedder(str(folder), "neck", study_config())


@pytest.mark.parametrize("what", ["chunks", "boxes"])
def test_parts_are_joined_to_the_table_of_one_piece(archive, model, tmp_path, monkeypatch, what):
    knobs = EmbedKnobs(what, "neck", map="pca", neighbours=0, min_members=3)
    arguments = (study_config(), str(model), str(archive))
    run_embed(*arguments, str(tmp_path / "whole"), knobs)
    units = recording_units(open_prepared(archive), chunks_to_embed(open_prepared(archive), ()))
    assert len(units) == 1
    monkeypatch.setattr(embedding_parts, "CHUNKS_PER_UNIT", 5)
    assert len(recording_units(open_prepared(archive), chunks_to_embed(open_prepared(archive), ()))) > 3
    run_embed(*arguments, str(tmp_path / "parts"), knobs)
    whole, parts = (pq.read_table(tmp_path / name / "embeddings.parquet") for name in ("whole", "parts"))
    facts = [name for name in FACTS.names if name != "hour"]
    order = [("recording_id", "ascending"), ("chunk", "ascending"), ("begin_s", "ascending")]
    if what == "boxes":
        assert parts.column("event").to_pylist() == whole.column("event").to_pylist()
    else:
        whole, parts = whole.sort_by(order), parts.sort_by(order)
    assert parts.select(facts).equals(whole.select(facts))
    np.testing.assert_allclose(vectors_of(parts), vectors_of(whole), rtol=1e-4, atol=1e-4)
    assert not [path for path in (tmp_path / "parts" / "work").rglob("*") if path.is_file()]
