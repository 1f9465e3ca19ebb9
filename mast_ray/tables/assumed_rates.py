"""Throughputs that every plan assumes (docs/measured/speed.md has the commands): of an H200 with the base model, without
and with its side path, and of two CPU cores with the tiny one. Measured end to end, unless a comment says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mast_ray.config.tree import Config


@dataclass(frozen=True)
class Rates:
    """Times real time per core, chunks per second per GPU (or of all cores without one), megabytes per second
    per node.
    """

    decode_x_per_core: float = 1200.0  # FLAC at 48 kHz
    logmel_x_per_core: float = 3800.0  # with writing the tables: prepare as a whole reaches 913 x
    pretrain_chunks_per_gpu_s: float = 2050.0
    train_chunks_per_gpu_s: float = 845.0  # a bare step 852, of which a run through Ray Train keeps 0.99
    infer_chunks_per_gpu_s: float = 2300.0
    network_mb_per_node_s: float = 1000.0
    device: str = "H200"
    scale: float = 1.0  # other GPUs: their bf16 rate over that of `device`

    @property
    def prepare_x_per_core(self) -> float:
        """Decoding and log-mel run on the same cores, one after the other."""
        return 1.0 / (1.0 / self.decode_x_per_core + 1.0 / self.logmel_x_per_core)


GPU_BASE = Rates()
GPU_SIDE_PATH = Rates(
    pretrain_chunks_per_gpu_s=930.0,  # where it is pretrained too
    train_chunks_per_gpu_s=645.0,  # a bare step 652, of which a run through Ray Train keeps 0.99
    infer_chunks_per_gpu_s=1820.0,  # by its arithmetic, 1.26 times as much; not measured
)
CPU_TINY = Rates(
    pretrain_chunks_per_gpu_s=30.0,
    train_chunks_per_gpu_s=7.0,
    infer_chunks_per_gpu_s=20.0,
    device="two CPU cores",
)


def gpu_rates(config: Config) -> Rates:
    """Those of the model that a config describes, as far as it has a side path or not; its size is that of the base."""
    if config.model.name != "mast" or config.model.adapter != "hybrid":
        return GPU_BASE
    if config.pretrain.side_path:
        return GPU_SIDE_PATH
    return replace(GPU_SIDE_PATH, pretrain_chunks_per_gpu_s=GPU_BASE.pretrain_chunks_per_gpu_s)
