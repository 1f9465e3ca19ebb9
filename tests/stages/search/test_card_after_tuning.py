"""What tuning changes about a model's scores makes an earlier calibration void; the card says one thing about nested boxes."""

import pytest
import torch

from mast_ray.config.recipes import tiny
from mast_ray.config.tree import ModelConfig
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.stages.search.tune import TuneResult, _deliver, _with_model
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.model_files import Card, read_card, read_model, write_model
from mast_ray.training.files.post_processing import PostProcessing
from mast_ray.training.files.shipped import is_shipped, shipped_model

CALIBRATION = {"kind": "of earlier scores"}


@pytest.mark.parametrize(
    ("doubted", "doubts", "weight", "is_kept"),
    [(False, False, 0.5, True), (True, True, 0.5, True), (False, True, 0.5, False), (True, False, 0.5, False),
     (False, False, 0.75, False)],
)  # fmt: skip
def test_a_calibration_stays_only_where_scores_do(tmp_path, doubted, doubts, weight, is_kept):
    normalisation = Normalisation(mean=0.0, std=1.0).to_dict()
    card = Card("detector", ModelConfig(size="tiny").model_dump(mode="json"), normalisation,
                calibration=CALIBRATION, doubts_nested=doubted)  # fmt: skip
    folder = open_storage(tmp_path)
    write_model(folder, {"weight": torch.zeros(1)}, card)
    _deliver(folder, PostProcessing(0.5, 0.1, 2, 0.3, weight, doubts))
    found = read_card(tmp_path)
    assert found.calibration == (CALIBRATION if is_kept else None)
    assert found.doubts_nested == doubts == PostProcessing.from_dict(found.post).doubts_nested


def test_a_detector_of_the_package_is_not_written_to_but_copied(tmp_path):
    """All archives of all users of the machine are heard with it."""
    package, out = shipped_model("tiny"), open_storage(tmp_path / "tuned")
    before = {path.name: path.read_bytes() for path in package.iterdir() if path.is_file()}
    found = TuneResult({}, 0.7, [], post=PostProcessing(0.5, 0.1, 2, 0.3, 0.75))
    told = _with_model(found, str(package), out, tiny())
    assert {path.name: path.read_bytes() for path in package.iterdir() if path.is_file()} == before
    assert told.model == out.at("model").url and not is_shipped(told.model)
    own = read_card(told.model)
    assert own.score_threshold == 0.3 and PostProcessing.from_dict(own.post).score_weight == 0.75
    assert own.weights_sha256 == read_card(package).weights_sha256
    read_model(told.model, "detector")  # whole


def test_a_detector_that_may_not_be_written_to_is_copied_as_well(tmp_path, monkeypatch):
    """Else the search would end, after all its work, with the error that the disk gives to the card."""
    normalisation = Normalisation(mean=0.0, std=1.0).to_dict()
    card = Card("detector", ModelConfig(size="tiny").model_dump(mode="json"), normalisation)
    write_model(open_storage(tmp_path / "theirs"), {"weight": torch.zeros(1)}, card)
    monkeypatch.setattr("os.access", lambda path, mode: "theirs" not in str(path))  # root may write anywhere
    out = open_storage(tmp_path / "tuned")
    found = TuneResult({}, 0.7, [], post=PostProcessing(0.5, 0.1, 2, 0.3, 0.75))
    told = _with_model(found, str(tmp_path / "theirs"), out, tiny())
    assert read_card(tmp_path / "theirs").post is None
    assert told.model == out.at("model").url and read_card(told.model).score_threshold == 0.3
    assert _with_model(found, str(tmp_path / "theirs"), out, tiny(), when="missing").model == told.model
