"""Names are checked like weights: other bytes, other weights and other versions are refused."""

import json

import numpy as np
import pytest

from mast_ray.config.errors import DataError
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.model_files import Card
from mast_ray.training.files.names_files import NAME_TENSORS, NAMES, names_version_of, read_names, write_names

CARD = Card("detector", {}, {}, weights_sha256="a" * 64)
TENSORS = {"bias": np.array([1.0, 2.0], np.float32)}


@pytest.fixture
def folder(tmp_path):
    storage = open_storage(tmp_path)
    write_names(storage, {"labels": ["a", "b"]}, TENSORS, CARD)
    return storage


def test_names_come_back_as_they_were_written(folder):
    document, tensors = read_names(folder, CARD)
    assert document["labels"] == ["a", "b"] and tensors["bias"].tolist() == [1.0, 2.0]
    assert len(names_version_of(folder)) == 64


def test_a_folder_without_names_has_none(tmp_path):
    assert read_names(open_storage(tmp_path), CARD) is None
    assert names_version_of(open_storage(tmp_path)) == ""


def test_names_of_other_weights_are_refused(folder):
    with pytest.raises(DataError, match="other weights"):
        read_names(folder, Card("detector", {}, {}, weights_sha256="b" * 64))


@pytest.mark.parametrize("content", [b"", b"no tensors"])
def test_changed_tensors_are_refused(folder, content):
    folder.write_atomic(NAME_TENSORS, content)
    with pytest.raises(DataError, match="sha256"):
        read_names(folder, CARD)


@pytest.mark.parametrize("change", [{"names_version": 9}, {"tensors_sha256": None}, None])
def test_a_document_that_says_something_else_is_refused(folder, change):
    text = "[]" if change is None else json.dumps(json.loads(folder.read_bytes(NAMES)) | change)
    folder.write_atomic(NAMES, text.encode())
    with pytest.raises(DataError, match="mast classify"):
        read_names(folder, CARD)
