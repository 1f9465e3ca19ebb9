"""What tuning changes about a model's scores makes an earlier calibration void; the card says one thing about nested boxes."""

import pytest
import torch

from mast_ray.config.tree import ModelConfig
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.stages.search.tune import _deliver
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.model_files import Card, read_card, write_model
from mast_ray.training.files.post_processing import PostProcessing

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
