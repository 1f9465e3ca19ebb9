"""The paper's schedule on many A100s, from what was measured on one H200: arithmetic only, nothing is run.

    python benchmarks/paper_schedule.py            # prints the tables of docs/scaling.md

A step of b chunks per GPU takes as long as its chunks at the measured rate, but no less than a step of few chunks takes
(kernels wait for their launch); what of the gradients' exchange does not fit beside the backward pass is added.
Measured figures and assumed ones are kept apart below, each with its source.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from mast_ray.config.recipes import paper
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES, fractional_hops

NUM_GPUS = (8, 64, 256)
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Measured:
    """One H200 with 16 cores (benchmarks/results/), ViT-B, batch 256, through Ray Train or the stage."""

    pretrain_chunks_per_s: float = 2052.5  # train_throughput_h200.json
    train_chunks_per_s: float = 666.9  # train_throughput_h200.json
    infer_chunks_per_s: float = 2306.2  # pseudo_label_h200.json
    feed_chunks_per_core_s: float = 16562.4 / 16  # ingest_h200_16_threads.json
    pool_chunks: int = 481_245  # the paper's


@dataclass(frozen=True)
class Assumed:
    """Nobody has run this on A100s from this repository."""

    a100_of_h200: float = 0.4
    shortest_step_s: float = 0.025  # forward, backward and AdamW of ViT-B with few chunks, compiled
    parameters: float = 111e6  # encoder and decoder; gradients travel as 4 bytes each
    backward_share: float = 2 / 3  # of a step: what the exchange may hide behind
    nvlink_gb_per_s: float = 240.0  # of a GPU, reached
    network_gb_per_s: float = 30.0  # of a node with 4 x 100 Gb/s, reached
    store_gb_per_s: float = 1.0  # S3 into a node
    cores_per_gpu: int = 12
    labelled_hours: float = 24.0


@dataclass(frozen=True)
class StepTime:
    """One optimiser step on some GPUs."""

    per_gpu: float  # chunks
    compute_s: float
    exchange_s: float
    exposed_s: float

    @property
    def seconds(self) -> float:
        return self.compute_s + self.exposed_s


def step_time(batch: int, num_gpus: int, chunks_per_s: float, assumed: Assumed) -> StepTime:
    """`chunks_per_s` of one H200; GPUs beyond one chunk each stand idle."""
    working = min(num_gpus, batch)
    per_gpu = batch / working
    compute_s = max(assumed.shortest_step_s, per_gpu / (chunks_per_s * assumed.a100_of_h200))
    num_bytes = 2 * 4 * assumed.parameters  # a ring sends every gradient twice
    in_node = min(working, GPUS_PER_NODE)
    exchange_s = num_bytes * (in_node - 1) / in_node / (assumed.nvlink_gb_per_s * 1e9)
    nodes = -(-working // GPUS_PER_NODE)
    exchange_s += num_bytes * (nodes - 1) / nodes / (assumed.network_gb_per_s * 1e9)
    exposed_s = max(0.0, exchange_s - assumed.backward_share * compute_s)
    return StepTime(per_gpu, compute_s, exchange_s, exposed_s)


def batch_of(printed: int, per_gpu: int, num_gpus: int) -> int:
    """The printed global batch, or `per_gpu` chunks on every GPU (0: as printed)."""
    return per_gpu * num_gpus if per_gpu else printed


def schedule(num_gpus: int, per_gpu: int, measured: Measured, assumed: Assumed) -> dict[str, float]:
    """Stage -> hours."""
    config = paper()
    pool, labelled = measured.pool_chunks, round(float(fractional_hops(assumed.labelled_hours * 3600)))
    rounds = config.self_train.rounds
    trainings = {
        "pretrain": (config.pretrain, pool, 1, measured.pretrain_chunks_per_s),
        "train": (config.detector, labelled, 1, measured.train_chunks_per_s),
        "self-train, stage 1": (config.self_train.stage1, pool, rounds, measured.train_chunks_per_s),
        "self-train, stage 2": (config.self_train.stage2, labelled, rounds, measured.train_chunks_per_s),
    }
    hours = {}
    for name, (knobs, chunks, times, rate) in trainings.items():
        batch = batch_of(knobs.batch_size, per_gpu, num_gpus)
        steps = times * knobs.epochs * max(1, chunks // batch)
        hours[name] = steps * step_time(batch, num_gpus, rate, assumed).seconds / 3600
    infer = measured.infer_chunks_per_s * assumed.a100_of_h200 * num_gpus
    hours["pseudo-label"] = rounds * pool / infer / 3600
    return hours


def rates_text(measured: Measured, assumed: Assumed) -> str:
    """What a node must read and exchange at full speed, against what it can."""
    wanted = measured.pretrain_chunks_per_s * assumed.a100_of_h200 * GPUS_PER_NODE
    feed = measured.feed_chunks_per_core_s * assumed.cores_per_gpu * GPUS_PER_NODE
    pool_gb = measured.pool_chunks * SEGMENT_FRAMES * NUM_BINS / 1e9
    rows = [
        ("feed from prepared tables, chunks/s per node", f"{wanted:,.0f}", f"{feed:,.0f}", f"{wanted / feed:.2f}"),
        ("first reading of the pool from S3, s per node (64 GPUs)", f"{pool_gb / 8 / assumed.store_gb_per_s:.0f}",
         "once", "-"),
    ]  # fmt: skip
    for per_gpu in (256, 64, 8):
        step = step_time(per_gpu * 64, 64, measured.pretrain_chunks_per_s, assumed)
        hidden = assumed.backward_share * step.compute_s
        rows.append((f"exchange beside the backward pass, ms, {per_gpu} chunks per GPU",
                     f"{1e3 * step.exchange_s:.0f}", f"{1e3 * hidden:.0f}", f"{step.exchange_s / hidden:.2f}"))  # fmt: skip
    return table(("what, pretraining", "wanted", "there is", "share"), rows)


def hours_text(per_gpu: int, measured: Measured, assumed: Assumed) -> str:
    plans = {count: schedule(count, per_gpu, measured, assumed) for count in NUM_GPUS}
    rows = [(name, *(f"{plan[name]:,.2f}" for plan in plans.values())) for name in plans[NUM_GPUS[0]]]
    rows.append(("all, hours", *(f"{sum(plan.values()):,.1f}" for plan in plans.values())))
    rows.append(("GPU-hours", *(f"{count * sum(plan.values()):,.0f}" for count, plan in plans.items())))
    pretrain = [
        step_time(batch_of(64, per_gpu, count), count, measured.pretrain_chunks_per_s, assumed) for count in NUM_GPUS
    ]  # fmt: skip
    rows.append(("chunks per GPU and step", *(f"{step.per_gpu:g}" for step in pretrain)))
    names = [f"{1e3 * step.compute_s:.0f} + {1e3 * step.exposed_s:.0f}" for step in pretrain]
    rows.append(("pretraining step, ms: compute + exposed exchange", *names))
    return table(("stage", *(f"{count} A100s" for count in NUM_GPUS)), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables() -> list[str]:
    measured, assumed = Measured(), Assumed()
    return [
        hours_text(0, measured, assumed),
        hours_text(256, measured, assumed),
        rates_text(measured, assumed),
    ]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print("\n\n".join(tables()))


if __name__ == "__main__":
    main()
