"""A model folder with a tiny detector of random weights: it finds something everywhere."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from mast_ray.config.recipes import tiny
from mast_ray.models.build import build_detector
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.storage.storage import open_storage
from mast_ray.training.assembly import architecture_of
from mast_ray.training.files.model_files import Card, read_card, write_model


def write_tiny_detector(folder: Path, seed: int = 0) -> Path:
    """weights.safetensors and card.json of a `tiny` detector."""
    config = tiny()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        detector = build_detector(architecture_of(config.model))
    card = Card(
        "detector", config.model.model_dump(mode="json"), Normalisation(-8.0, 3.0).to_dict(), score_threshold=0.1,
        calibration={"method": "platt", "slope": 1.0, "offset": 0.0},
    )  # fmt: skip
    write_model(open_storage(folder), detector.state_dict(), card)
    return folder


def numbed(model: Path, folder: Path, score_bias: float) -> Path:
    """The model with a head that does not look: every place gets one and the same score."""
    weights = load_file(model / "weights.safetensors")
    for name, value in weights.items():
        if name.startswith("head.") and value.ndim == 4:
            value.zero_()
        if name == "head.score.bias":
            value.fill_(score_bias)
    write_model(open_storage(folder), weights, read_card(model))
    return folder
