"""A detector folder with fresh weights: enough to go through every stage, without training."""

import torch

from mast_ray.config.tree import Config
from mast_ray.models.build import build_detector
from mast_ray.models.detector import PointDetector
from mast_ray.spectrogram.normalisation import Background, Normalisation
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import architecture_of
from mast_ray.training.files.model_files import Card, write_model

# of the classification over all points: the best twenty of a chunk score 0.4 to 0.7
LOGIT_MEAN, LOGIT_SPREAD = -9.0, 3.5


def write_seed_detector(
    config: Config, prepared, folder, seed: int = 0, background: Background = "none"
) -> str:
    """Weights drawn by `seed`, with the head set to scores as wide apart as a trained model's."""
    torch.manual_seed(seed)
    detector = build_detector(architecture_of(config.model))
    with torch.no_grad():
        for name, value in detector.named_parameters():
            if name.startswith("head.") and value.ndim == 4:
                value.mul_(3.0)
    archive = with_background(open_prepared(str(prepared)), background)
    normalisation = archive.normalisation(config.spectrogram.divisor)
    spread_scores(detector, archive, normalisation)
    card = Card("detector", config.model.model_dump(mode="json"), normalisation.to_dict())
    write_model(open_storage(str(folder)), detector.state_dict(), card)
    return str(folder)


@torch.no_grad()
def spread_scores(detector: PointDetector, archive: Prepared, normalisation: Normalisation) -> None:
    """Mean and spread of what the head says of the archive's chunks: the same whatever the architecture's first weights."""
    reader = ChunkReader(archive, chunks_of_split(archive, "train"), batch_size=4, num_threads=1)
    raw = next(iter(reader.sequential()))
    logmel = normalisation(raw.values, raw.scale, raw.offset, background=raw.background)
    said = detector.eval()(logmel).score_logit
    head = detector.head.score
    scale = LOGIT_SPREAD / said.std()
    head.bias.copy_(LOGIT_MEAN + (head.bias - said.mean()) * scale)
    head.weight.mul_(scale)
