"""How long, how much, and what limits: stage by stage arithmetic for an archive on
N GPUs, before spending a cent.

Every stage is a pipe of parts (decode, log-mel, network, GPU) that run side by side; the slowest sets the
pace. Rates are measured ones (`benchmarks/`), per core or per GPU; a user's own rates can be given instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from mast_ray.config.stage_knobs import DetectorTrainConfig, lengthened
from mast_ray.config.tree import Config
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES, fractional_hops
from mast_ray.tables.assumed_rates import Rates
from mast_ray.tables.budgets import labels_pool, share_of_pool


@dataclass(frozen=True)
class Hardware:
    """What the work is spread over."""

    num_gpus: int = 1
    cores_per_gpu: int = 12
    gpus_per_node: int = 8

    @property
    def num_cores(self) -> int:
        return max(1, self.num_gpus) * self.cores_per_gpu

    @property
    def num_nodes(self) -> int:
        return max(1, -(-self.num_gpus // self.gpus_per_node))


@dataclass(frozen=True)
class Archive:
    """What an inventory says, and how much of it is labelled."""

    hours: float
    num_recordings: int
    num_bytes: int
    labelled_hours: float = 0.0

    @property
    def num_chunks(self) -> int:
        """A recording has one chunk at the least, however short it is."""
        return max(self.num_recordings, round(float(fractional_hops(self.hours * 3600))))

    @property
    def labelled_chunks(self) -> int:
        return round(float(fractional_hops(self.labelled_hours * 3600)))


@dataclass(frozen=True)
class StagePlan:
    """One stage: wall hours, GPU hours, bytes written, and the part that limits it."""

    name: str
    hours: float
    gpu_hours: float
    num_bytes: int
    limit: str


def stored_bytes(num_chunks: int, storage: str) -> int:
    """Bytes of a prepared archive's frames before compression: each frame once."""
    return num_chunks * SEGMENT_FRAMES * NUM_BINS * {"uint8": 1, "float16": 2}[storage]


def _slowest(parts: dict[str, float]) -> tuple[float, str]:
    limit = max(parts, key=lambda name: parts[name])
    return parts[limit], limit


def learned_chunks(knobs: DetectorTrainConfig, num_chunks: int) -> float:
    """Chunks that a training goes through, each as often as it does: no fewer steps than it asks for at the least, no more
    than at the most. A batch is filled whatever there is.
    """
    whole = lengthened(knobs, num_chunks)
    learned = whole.epochs * max(num_chunks, whole.batch_size)
    return min(learned, knobs.max_steps * knobs.batch_size) if knobs.max_steps else learned


def plan_stages(archive: Archive, config: Config, hardware: Hardware, rates: Rates) -> list[StagePlan]:
    """Every stage of the mission for this archive."""
    gpus = max(1, hardware.num_gpus)
    audio_s = archive.hours * 3600
    frames_bytes = stored_bytes(archive.num_chunks, config.spectrogram.storage)
    decode_h = audio_s / (rates.decode_x_per_core * hardware.num_cores) / 3600
    prepare_h = audio_s / (rates.prepare_x_per_core * hardware.num_cores) / 3600

    def network_h(num_bytes: float) -> float:
        return num_bytes / 1e6 / (rates.network_mb_per_node_s * hardware.num_nodes) / 3600

    def gpu_h(num_chunks: float, chunks_per_s: float) -> float:
        return num_chunks / (chunks_per_s * rates.scale * gpus) / 3600

    stages = []

    def add(name: str, parts: dict[str, float], num_bytes: int = 0, on_gpu: bool = True) -> None:
        hours, limit = _slowest(parts)
        stages.append(StagePlan(name, hours, hours * hardware.num_gpus if on_gpu else 0.0, num_bytes, limit))

    read_h = network_h(archive.num_bytes)
    add("prepare", {"cores": prepare_h, "network": read_h}, frames_bytes, on_gpu=False)
    epochs = config.pretrain.epochs
    pool_read_h = epochs * network_h(frames_bytes)
    add(
        "pretrain",
        {"GPU": gpu_h(archive.num_chunks * epochs, rates.pretrain_chunks_per_gpu_s), "network": pool_read_h},
    )
    if archive.labelled_chunks:
        labelled = archive.labelled_chunks
        knobs, rounds = config.self_train, config.self_train.rounds
        add("train", {"GPU": gpu_h(learned_chunks(config.detector, labelled), rates.train_chunks_per_gpu_s)})
        if labels_pool(knobs):
            share = min(1.0, (knobs.most_labelled or archive.num_chunks) / max(1, archive.num_chunks))
            heard = archive.num_chunks * share * knobs.teacher_hearings
            parts = {
                "GPU": rounds * gpu_h(heard, rates.infer_chunks_per_gpu_s),
                "network": rounds * network_h(frames_bytes * share),
            }
            add("pseudo-label", parts)
        used = round(min(archive.num_chunks, knobs.max_chunks or archive.num_chunks) / share_of_pool(knobs))
        learned = 0.0
        if knobs.curriculum != "stage2_only":
            learned += learned_chunks(knobs.stage1, used + (labelled if knobs.curriculum == "union" else 0))
        if knobs.curriculum in ("two_stage", "stage2_only", "mixed_then_expert"):
            learned += learned_chunks(knobs.stage2, labelled)
        add("self-train", {"GPU": gpu_h(rounds * learned, rates.train_chunks_per_gpu_s)})
    add(
        "detect",
        {
            "GPU": gpu_h(archive.num_chunks, rates.infer_chunks_per_gpu_s),
            "cores": decode_h,
            "network": read_h,
        },
    )
    return stages
