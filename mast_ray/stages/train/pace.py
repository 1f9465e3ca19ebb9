"""How fast this machine trains a detector: minutes mean minutes on any of them."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import torch

from mast_ray.config.tree import Config
from mast_ray.models.detector import PointDetector
from mast_ray.spectrogram.grid import CHUNK_FRAMES, NUM_BINS
from mast_ray.storage.storage import Storage
from mast_ray.tables.assumed_rates import CPU_TINY, Rates
from mast_ray.training.assembly import load_detector
from mast_ray.training.engine import quickest_gradients
from mast_ray.training.worker import first_device

PACE = "pace.json"


def pace_of_run(config: Config, model: str, out: Storage) -> float:
    """Chunks per second, measured by the first start of a run and kept in its folder: what is planned from it stays the same
    when the run is interrupted and started again.
    """
    entry = out.stat(PACE)
    if entry is None or not entry.num_bytes:
        out.delete(PACE)  # an empty one: a process was killed while it put it on a disk without hard links
        pace = {"train_chunks_per_s": float(f"{chunks_per_second(config, model):.2g}")}
        out.put_if_absent(PACE, json.dumps(pace).encode())
    return float(json.loads(out.read_bytes(PACE))["train_chunks_per_s"])


def chunks_per_second(config: Config, model: str) -> float:
    """Chunks of one measured step forward and back, after a small one that pays for the start; baselines have an assumed rate."""
    detector = load_detector(model, config.storage)[0]
    if not isinstance(detector, PointDetector):
        return CPU_TINY.train_chunks_per_gpu_s
    device = first_device(config.cluster.use_gpu)
    detector = detector.to(device).train()
    size = config.self_train.stage2.batch_size
    seconds = 0.0
    for num_chunks in (1, size):
        chunks = torch.zeros(num_chunks, 1, CHUNK_FRAMES, NUM_BINS, device=device)
        begun_s = time.perf_counter()
        found = detector(chunks)
        parts = (found.score_logit, found.centerness_logit, found.distances)
        with quickest_gradients(device, "fp32"):
            torch.stack([part.float().mean() for part in parts]).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begun_s
    return size / max(seconds, 1e-6)


def cpu_rates(chunks_per_s: float) -> Rates:
    """The assumed rates of a processor, all of them as much faster or slower as its measured training is."""
    factor = chunks_per_s / CPU_TINY.train_chunks_per_gpu_s
    return replace(
        CPU_TINY,
        pretrain_chunks_per_gpu_s=CPU_TINY.pretrain_chunks_per_gpu_s * factor,
        train_chunks_per_gpu_s=chunks_per_s,
        infer_chunks_per_gpu_s=CPU_TINY.infer_chunks_per_gpu_s * factor,
    )
