"""A detector folder with fresh weights: enough to go through every stage, without training."""

import torch

from mast_ray.config.tree import Config
from mast_ray.models.build import build_detector
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.assembly import architecture_of
from mast_ray.training.files.model_files import Card, write_model


def write_seed_detector(config: Config, prepared, folder, seed: int = 0) -> str:
    """Weights drawn by `seed`; head biases are spread so that scores differ between chunks."""
    torch.manual_seed(seed)
    detector = build_detector(architecture_of(config.model))
    with torch.no_grad():
        for name, value in detector.named_parameters():
            if name.startswith("head.") and value.ndim == 4:
                value.mul_(3.0)
    normalisation = open_prepared(str(prepared)).normalisation(config.spectrogram.divisor)
    card = Card("detector", config.model.model_dump(mode="json"), normalisation.to_dict())
    write_model(open_storage(str(folder)), detector.state_dict(), card)
    return str(folder)
