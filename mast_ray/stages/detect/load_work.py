"""Builds the work of a detect run where it is to be done: model from its folder,
onto the device of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.review.calibration import Calibration
from mast_ray.inference.decode_threads import DecodeKnobs
from mast_ray.inference.detection_rows import RowKnobs
from mast_ray.inference.naming import ModelNames, load_names, used_embedding
from mast_ray.inference.tuned_detector import as_delivered, delivered_post
from mast_ray.inference.window_detector import InferenceKnobs, WindowDetector
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.spectrogram.chunking import Tail
from mast_ray.stages.detect.plan import (
    BYTES_PER_HOUR,
    COMPILE_FROM_HOURS,
    Workers,
    batch_size,
    decode_threads_of,
)
from mast_ray.stages.detect.work import DetectWork
from mast_ray.storage.storage import Storage
from mast_ray.tables.preparing.unit_work import limits_of
from mast_ray.training.assembly import load_detector
from mast_ray.training.engine import choose_precision
from mast_ray.training.files.model_files import CARD, Card


@dataclass(frozen=True)
class WorkMaker:
    """Called with the workers it gives what makes the work; all of it travels to Ray's workers."""

    model: str
    archive: Storage
    stage: Storage
    config: Config
    sites: SiteTable | None
    threshold: float
    archive_bytes: int

    def __call__(self, workers: Workers) -> Callable[[], DetectWork]:
        return _MakeWork(self, workers)


@dataclass(frozen=True)
class _MakeWork:
    maker: WorkMaker
    workers: Workers

    def __call__(self) -> DetectWork:
        of = self.maker
        detector, card = load_detector(of.model, of.config.storage)
        places = (of.archive, of.stage, of.sites)
        names = load_names(of.model, card, of.config.storage)
        work = work_of(
            detector, card, of.config, self.workers, *places, of.threshold, of.archive_bytes, names
        )
        work.detector.warm_up()
        return work


def work_of(
    detector: torch.nn.Module,
    card: Card,
    config: Config,
    workers: Workers,
    archive: Storage,
    stage: Storage,
    sites: SiteTable | None = None,
    threshold: float = 0.0,
    archive_bytes: int = 0,
    names: ModelNames | None = None,
) -> DetectWork:
    """The work of a detector in this process."""
    if workers.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("cluster.use_gpu asks for a GPU and this worker has none: --set cluster.use_gpu=no")
    if workers.device == "cpu":
        torch.set_num_threads(workers.threads)
    device = torch.device(workers.device)
    tail: Tail = "zeros" if card.tail == "zeros" else "real"
    knobs = inference_knobs(config, workers, archive_bytes)
    post = delivered_post(card, config.evaluate)
    knobs = replace(knobs, embeddings=used_embedding(config.detect.embeddings, names))
    windows = WindowDetector(
        as_delivered(detector, card, config.evaluate), card.normaliser(), tail, knobs, device
    )
    decode = DecodeKnobs(
        config.audio, limits_of(config.audio), config.spectrogram.short_recordings, windows.segment_kind,
        decode_threads_of(config.detect, workers),
    )  # fmt: skip
    calibration = calibration_of(card)
    keeps_embeddings = config.detect.embeddings != "none"
    rows = RowKnobs(
        threshold, config.detect.song_gap_s, card.weights_sha256, calibration, names, keeps_embeddings, post
    )
    return DetectWork(archive, stage, windows, decode, rows, sites)


def calibration_of(card: Card, model: str = "the model") -> Calibration | None:
    """The curve from score to probability in a model's card; None where it was never calibrated."""
    if not card.calibration:
        return None
    try:
        return Calibration.from_dict(card.calibration)
    except ValueError as error:
        raise DataError(
            f"{CARD} of {model} has a calibration that cannot be used ({str(error)[:120]}):\n"
            "run `mast calibrate --model` again, or write null in its place to detect without probabilities"
        ) from error


def inference_knobs(config: Config, workers: Workers, archive_bytes: int) -> InferenceKnobs:
    """Batch, precision and compilation for the device; small archives are through before a compiler is."""
    is_gpu = workers.device == "cuda"
    is_large = archive_bytes >= COMPILE_FROM_HOURS * BYTES_PER_HOUR
    pays = config.model.compile == "on" or (config.model.compile == "auto" and is_large)
    compiled: Literal["no", "yes"] = "yes" if is_gpu and pays else "no"
    return InferenceKnobs(
        batch_size=batch_size(config.detect, workers),
        score_floor=config.evaluate.score_floor,
        nms_overlap=config.evaluate.nms_overlap,
        max_detections=config.evaluate.max_detections,
        embeddings=config.detect.embeddings,
        precision=choose_precision(config.cluster.precision, torch.device(workers.device)),
        compile=compiled,
    )
