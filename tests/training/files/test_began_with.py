"""What a training begins with finds its way into the card of the model it makes, with all that this goes back to."""

import hashlib
import json
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest
import torch

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import tiny
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.training.data.labels import LabelSource
from mast_ray.training.files.began_with import OF_PUBLISHER, TAUGHT_BY, model_text, origins_of
from mast_ray.training.files.model_files import Card, read_card, write_card, write_model
from mast_ray.training.files.origins import Origin
from mast_ray.training.files.shipped import shipped_model

SETTINGS = tiny().storage
NORMALISATION = {"mean": -8.0, "std": 3.0, "divisor": 1.0, "eps": 1e-6, "background": "none"}
TINY = read_card(shipped_model("tiny"))
OF_TINY = Origin("start", "shipped:tiny", TINY.weights_sha256, TINY.licence)


def write(folder, value, **known):
    """A model folder; its weights are one number."""
    card = Card("detector", tiny().model.model_dump(mode="json"), NORMALISATION, **known)
    return write_model(open_storage(folder), {"one": torch.tensor([value])}, card)


def test_a_start_brings_what_it_went_back_to_itself(tmp_path):
    first = write(tmp_path / "run" / "first", 1.0, began_with=(OF_TINY,))
    own = Origin("start", "run/first", first.weights_sha256)
    assert origins_of([("start", str(tmp_path / "run" / "first"))], SETTINGS) == (own, OF_TINY)
    again = write(tmp_path / "run" / "second", 2.0, began_with=(own, OF_TINY), licence="CC BY 4.0")
    assert read_card(tmp_path / "run" / "second") == again, "the card survives the round trip"
    found = origins_of([("encoder", ""), ("start", str(tmp_path / "run" / "second"))], SETTINGS)
    assert [(one.name, one.licence) for one in found] == [
        ("run/second", "CC BY 4.0"),
        ("run/first", ""),
        ("shipped:tiny", TINY.licence),
    ]
    assert origins_of([("start", ""), ("encoder", "")], SETTINGS) == ()


def test_what_a_teacher_began_with_came_by_its_labels_alone_unless_weights_of_it_went_on_too(tmp_path):
    teacher, start = str(tmp_path / "run" / "teacher"), str(tmp_path / "run" / "start")
    write(teacher, 1.0, began_with=(OF_TINY,))
    assert [one.how for one in origins_of([("teacher", teacher)], SETTINGS)] == ["teacher", "teacher"]
    write(start, 2.0, began_with=(OF_TINY,))
    found = origins_of([("start", start), ("teacher", teacher)], SETTINGS)
    assert [(one.how, one.name) for one in found] == [
        ("start", "run/start"),
        ("start", "shipped:tiny"),
        ("teacher", "run/teacher"),
    ]


def test_a_copy_of_a_shipped_detector_is_known_by_its_weights_though_its_card_is_old(tmp_path):
    copy = tmp_path / "tuned"
    shutil.copytree(shipped_model("tiny"), copy)
    values = json.loads((copy / "card.json").read_text())
    del values["licence"], values["began_with"]
    (copy / "card.json").write_text(json.dumps(values))
    assert read_card(copy).began_with is None
    assert origins_of([("start", str(copy))], SETTINGS) == (OF_TINY,)


def test_what_an_old_card_does_not_say_is_named_as_that(tmp_path):
    old = write(tmp_path / "old" / "model", 1.0)
    own, before = origins_of([("start", str(tmp_path / "old" / "model"))], SETTINGS)
    assert own == Origin("start", "old/model", old.weights_sha256)
    assert before.name == "not recorded (old/model is from before it was)"


def test_public_weights_are_named_by_their_file_and_its_hash(tmp_path):
    (tmp_path / "pretrained.pth").write_bytes(b"of another place")
    sha = hashlib.sha256(b"of another place").hexdigest()
    found = origins_of([("encoder", str(tmp_path / "pretrained.pth"))], SETTINGS)
    assert found == (Origin("encoder", "pretrained.pth", sha, OF_PUBLISHER),)


@pytest.mark.parametrize(
    ("name", "is_taught"), [("pseudo", True), ("both", True), ("mixed", True), ("control", False)]
)
def test_who_labelled_the_pool_taught_the_student(tmp_path, name, is_taught):
    teacher = replace(OF_TINY, how="teacher")
    stage, now = open_storage(tmp_path), datetime(2026, 11, 19, tzinfo=UTC)
    counts = {TAUGHT_BY: [asdict(teacher)]}
    write_manifest(stage, "pseudo", tiny(), "k", {"model": TINY.weights_sha256}, counts, now)
    labels = LabelSource(name, str(tmp_path))
    assert origins_of([], SETTINGS, labels) == ((teacher,) if is_taught else ())
    # pseudo-labels from before that was recorded hold the hash of the model
    write_manifest(stage, "pseudo", tiny(), "k", {"model": TINY.weights_sha256}, {}, now)
    assert origins_of([], SETTINGS, labels) == ((teacher,) if is_taught else ())
    assert origins_of([], SETTINGS, LabelSource()) == ()


def test_a_teacher_that_nobody_recorded_is_named_as_that(tmp_path):
    (own,) = origins_of([], SETTINGS, LabelSource("pseudo", str(tmp_path / "a" / "pseudo")))
    assert (own.how, own.name) == ("teacher", "not recorded (labels a/pseudo)")


def test_a_model_is_described_with_all_it_goes_back_to(tmp_path):
    card = write(tmp_path / "model", 1.0, data_hash="abc", began_with=(OF_TINY,), code_version="0.1.0")
    sha, of_tiny = card.weights_sha256[:16], TINY.weights_sha256[:16]
    assert model_text(card, "/home/ann/run/model").splitlines() == [
        f"run/model: detector mast tiny, weights {sha}, trained on data abc by mast_ray 0.1.0",
        f"began with  shipped:tiny, weights {of_tiny}",
        f"licence of shipped:tiny: {TINY.licence}",
        'run/model itself states no licence: whoever made it can, as "licence" in card.json',
    ]
    stated = replace(card, began_with=(), licence="CC BY 4.0")
    assert model_text(stated, "model").splitlines()[1:] == [
        "began with  nothing",
        "licence of model: CC BY 4.0",
    ]
    assert "not recorded" in model_text(replace(card, began_with=None), "model")
    assert model_text(TINY, "copy").startswith("shipped:tiny: ")


@pytest.mark.parametrize("odd", [{"began_with": "nothing"}, {"began_with": [{"how": "x"}]}, {"licence": 3}])
def test_a_card_with_odd_origins_is_refused_with_the_remedy(tmp_path, odd):
    write(tmp_path, 1.0)
    values = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(values | odd))
    with pytest.raises(DataError, match="cannot be used"):
        read_card(tmp_path)


def test_a_new_threshold_leaves_what_a_card_says_of_its_origins(tmp_path):
    card = write(tmp_path, 1.0, began_with=(OF_TINY,), licence="CC BY 4.0")
    write_card(open_storage(tmp_path), replace(read_card(tmp_path), score_threshold=0.3))
    assert read_card(tmp_path) == replace(card, score_threshold=0.3)
