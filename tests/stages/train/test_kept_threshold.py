"""Where nothing held out can tune a threshold, the one that a detector came with holds."""

from types import SimpleNamespace

import pytest
import torch
from small_archive import make_prepared, small_config

from mast_ray.inference.chunk_detector import Inputs
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.stages.train.export import card_of
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.files.model_files import Card


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return open_prepared(str(make_prepared(tmp_path_factory.mktemp("small"))))


@pytest.mark.parametrize(
    ("figures", "own", "threshold", "doubts"),
    [
        ({"f1": 0.8, "threshold": 0.41}, 0.52, 0.41, False),  # tuned on calls
        ({"f1": 0.8, "threshold": 0.41, "doubts_nested": 1.0}, None, 0.41, True),
        ({"f1": 0.0, "threshold": 0.52}, 0.52, 0.52, True),  # validation without a call
        ({}, 0.52, 0.52, True),  # no validation at all
        ({"f1": 0.0, "threshold": 0.5}, None, None, False),  # from nothing: nobody knows
    ],
)
def test_the_threshold_of_a_card(prepared, figures, own, threshold, doubts):
    inputs = Inputs(Normalisation(mean=0.0, std=1.0), "real", torch.device("cpu"), "fp32")
    began = Card("detector", {}, {}, score_threshold=own, doubts_nested=True) if own else None
    result = SimpleNamespace(position=SimpleNamespace(extra=figures))
    card = card_of("detector", small_config(), inputs, prepared, result, began)
    assert card.score_threshold == threshold and card.doubts_nested == doubts
