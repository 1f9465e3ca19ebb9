"""Chunks per second of a pretraining step, of detector inference and of a detector
training step, eager beside compiled.

Synthetic input on the device, bf16 autocast, fused AdamW, warm-up left out. Rivals run in the same process:
the same autoencoder with plain layer norms, and torchvision's FCOS R50. Each figure comes with its share of the
matrix-product rate measured first, and peak memory.

    python benchmarks/model_steps.py --out model_steps.json                             # one GPU, ViT-B, batch 256
    python benchmarks/model_steps.py --device cpu --size tiny --batch 4 --steps 2       # smoke check
    python benchmarks/model_steps.py --what pretrain train --variants torch zero1 zero2 zero3   # through an engine

The variants torch, zero1, zero2, zero3 and offload (ZeRO-2, optimizer in host memory) run the step of `mast pretrain`
and `mast train` through that engine, with clipping and (train) the moving average: compiled where the engine can be.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.config.loading import apply_overrides, parse_set
from mast_ray.config.recipes import field
from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture
from mast_ray.models.encoder import ENCODER_SHAPES
from mast_ray.models.masking import Masking
from mast_ray.training.assembly import detection, engine_of, reconstruction
from mast_ray.training.data.feed import bucketed
from mast_ray.training.loop import seed_draws
from mast_ray.training.objectives import ReconstructionObjective, build_autoencoder, detection_objective
from mast_ray.training.schedule import schedule_of
from mast_ray.training.worker import LocalWorker

GOALS = {"pretrain": 1_900, "detect": 2_000, "train": 500}  # chunks/s on one H200, ViT-B, batch 256, compiled

ENGINES = {"torch": None, "zero1": 1, "zero2": 2, "zero3": 3, "offload": 2}  # ZeRO stage


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    rate = matrix_product_rate(device)
    header = {
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "size": args.size,
        "batch": args.batch,
        "steps": args.steps,
        "precision": "bf16 autocast",
        "compile_mode": args.compile_mode,
        "decoder": args.decoder,
        "boxes_per_chunk": args.boxes,
        "matrix_product_tflops": round(rate / 1e12, 1),
    }
    print(json.dumps(header, indent=2), flush=True)
    rows = []
    for name in args.what:
        for variant in args.variants:
            try:
                row = measure(name, variant, args, device, rate)
            except torch.OutOfMemoryError:
                row = {"what": name, "variant": variant, "out_of_memory": True}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.out:
        args.out.write_text(
            json.dumps({"configuration": header, "goals": GOALS, "results": rows}, indent=2) + "\n"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--size", choices=tuple(ENCODER_SHAPES), default="base")
    add("--batch", type=int, default=256)
    add("--boxes", type=int, default=12, help="boxes per chunk in training")
    add("--steps", type=int, default=20)
    add("--warmup", type=int, default=5)
    add("--decoder", choices=("global", "local"), default="global")
    add("--compile-mode", default="default", help="default, max-autotune-no-cudagraphs, reduce-overhead")
    add(
        "--contrastive",
        choices=("compiled", "eager"),
        default="compiled",
        help="where the contrastive loss runs",
    )
    add("--what", nargs="+", choices=tuple(GOALS), default=list(GOALS))
    add(
        "--variants",
        nargs="+",
        choices=("rival", "eager", "compiled", *ENGINES),
        default=["rival", "eager", "compiled"],
    )
    add("--checkpoint-activations", choices=("on", "off"), default="off", help="with the engines")
    add("--compile", choices=("on", "off", "auto"), default="auto", help="with the engines")
    add(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any knob, with the engines",
    )
    add("--out", type=Path)
    return parser.parse_args()


def measure(
    name: str, variant: str, args: argparse.Namespace, device: torch.device, rate: float
) -> dict[str, Any]:
    """One row: chunks/s, TFLOP/s, share of the matrix-product rate, peak memory, seconds until the first
    step was done.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step, label = prepared_step(name, variant, args, device)
    started = time.perf_counter()
    step()
    synchronise(device)
    first_s = time.perf_counter() - started
    for _ in range(args.warmup):
        step()
    synchronise(device)
    started = time.perf_counter()
    for _ in range(args.steps):
        step()
    synchronise(device)
    seconds = (time.perf_counter() - started) / args.steps
    row: dict[str, Any] = {
        "what": name,
        "variant": variant,
        "model": label,
        "chunks_per_s": round(args.batch / seconds, 1),
        "ms_per_step": round(1000 * seconds, 2),
        "first_step_s": round(first_s, 1),
    }
    if device.type == "cuda":
        row["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    if device.type == "cuda" and variant not in ENGINES:
        row["waits_for_host"] = waits_for_host(step)
    if variant != "rival" and variant not in ENGINES:
        flops = flops_per_chunk(name, args, device)
        row["gflop_per_chunk"] = round(flops / 1e9, 1)
        row["tflops"] = round(flops * args.batch / seconds / 1e12, 1)
        row["share_of_matrix_product"] = round(flops * args.batch / seconds / rate, 3)
    if variant == "compiled" and args.size == "base" and args.batch == 256 and device.type == "cuda":
        row["goal_chunks_per_s"], row["reached"] = GOALS[name], args.batch / seconds >= GOALS[name]
    return row


def prepared_step(
    name: str, variant: str, args: argparse.Namespace, device: torch.device, batch: int | None = None
) -> tuple[Callable[[], object], str]:
    """A call that does one whole step, and what it runs."""
    batch = batch or args.batch
    if variant in ENGINES:
        return engine_step(name, variant, args, device)
    options = {} if args.compile_mode == "default" else {"mode": args.compile_mode}
    amp = partial(torch.autocast, device.type, torch.bfloat16)
    chunks = torch.randn((batch, 1, 1024, 128), device=device)
    is_rival = variant == "rival"
    match name:
        case "pretrain":
            autoencoder = build_autoencoder(args.size, args.decoder)
            if is_rival:
                use_plain_norms(autoencoder)
            objective: nn.Module = ReconstructionObjective(autoencoder, Masking()).to(device)
            empty = pad_boxes([torch.zeros(0, 4)] * batch).to(device)
            example = ChunkBatch(chunks, empty, torch.ones(batch, device=device))
            label = f"masked autoencoder, {args.decoder} decoder" + ", plain norms" * is_rival
            if variant == "compiled" or is_rival:  # the anchor to beat is compiled
                objective.compile_step(**options)
        case "train":
            objective = detection_objective(detector_of(args, is_rival)).to(device)
            example = ChunkBatch(
                chunks, random_boxes(batch, args.boxes).to(device), torch.ones(batch, device=device)
            )
            label = "torchvision FCOS" if is_rival else "MAST detector, all unfrozen"
            if variant == "compiled":
                objective.compile_step(args.contrastive, **options)
        case "detect":
            detector = detector_of(args, is_rival).to(device).eval()
            detect = torch.compile(detector.detect, **options) if variant == "compiled" else detector.detect

            def infer() -> object:
                with torch.no_grad(), amp():
                    return detect(chunks)

            return infer, "torchvision FCOS" if is_rival else "MAST detector with suppression"
    objective.train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-4, fused=True)

    def train() -> Tensor:
        with amp():
            loss = objective(example)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return train, label


def engine_step(
    name: str, variant: str, args: argparse.Namespace, device: torch.device
) -> tuple[Callable[[], object], str]:
    """The step of a real run, through its engine, on chunks that lie on the device."""
    section = {"pretrain": "pretrain", "train": "detector"}[name]
    knobs: dict[str, Any] = {
        "model.size": args.size, "model.decoder": args.decoder, "model.compile": args.compile,
        f"{section}.batch_size": args.batch, "cluster.checkpoint_activations": args.checkpoint_activations,
        "cluster.engine": "torch" if variant == "torch" else "deepspeed",
        "cluster.zero_stage": ENGINES[variant] or 0,
        "cluster.offload": "optimizer" if variant == "offload" else "none",
        "detector.unfrozen_blocks": 10**6, "detector.backbone_multiplier": 1.0,
    }  # fmt: skip
    config = apply_overrides(field(), knobs | parse_set(args.sets))
    training = getattr(config, section)
    schedule = schedule_of(training, 1000 * args.batch)
    objective = reconstruction(config) if name == "pretrain" else detection(config, training)
    worker = LocalWorker(device)
    engine = engine_of(objective, config, training, schedule, worker, section)
    engine.set_epoch(0.0)
    boxes = bucketed(random_boxes(args.batch, args.boxes if name == "train" else 0)).to(device)
    chunks = torch.randn((args.batch, 1, 1024, 128), device=device)
    example = ChunkBatch(chunks, boxes, torch.ones(args.batch, device=device))
    rows, count = torch.arange(args.batch, device=device), iter(range(10**9))

    def train() -> Tensor:
        seed_draws(objective, next(count), rows, args.batch, 0)
        losses = engine.backward(example, is_last=True)
        engine.step(1e-4)
        return losses["loss"]

    kept = "activations computed again" if args.checkpoint_activations == "on" else "activations kept"
    return train, f"{engine.name}, {args.size}, {kept}"


def detector_of(args: argparse.Namespace, is_rival: bool) -> nn.Module:
    return build_detector(DetectorArchitecture("fcos" if is_rival else "mast", args.size))


class FloatStream(nn.Module):
    """Puts the residual stream back to float32, where plain autocast keeps it."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.float()


def use_plain_norms(autoencoder: nn.Module) -> None:
    """timm's blocks with plain layer norms, so that the residual stream is float32: what a user gets without
    this package.
    """
    from timm.models.vision_transformer import Block

    norm = partial(nn.LayerNorm, eps=1e-6)
    for part in (autoencoder.encoder, autoencoder.decoder):
        for index, block in enumerate(part.blocks):
            if not hasattr(block.attn, "tau"):
                width, heads = block.norm1.normalized_shape[0], block.attn.num_heads
                part.blocks[index] = Block(width, heads, qkv_bias=True, norm_layer=norm)
        part.blocks.insert(0, FloatStream())
        part.norm = norm(part.norm.normalized_shape)


def random_boxes(num_chunks: int, per_chunk: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    low = torch.rand((num_chunks, per_chunk, 2), generator=generator) * torch.tensor([900.0, 100.0])
    size = torch.rand((num_chunks, per_chunk, 2), generator=generator) * torch.tensor([120.0, 26.0]) + 2.0
    return pad_boxes(list(torch.cat([low, low + size], dim=-1)))


def flops_per_chunk(name: str, args: argparse.Namespace, device: torch.device) -> float:
    """Floating-point operations of one eager step on two chunks, halved (multiply and add count as two)."""
    step, _ = prepared_step(name, "eager", args, device, batch=2)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / 2


def matrix_product_rate(device: torch.device) -> float:
    """FLOP/s of a large bf16 matrix product: what the chip gives, not what its sheet says."""
    size, repeats = (8192, 50) if device.type == "cuda" else (512, 3)
    left, right = (torch.randn((size, size), device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        left @ right
    synchronise(device)
    started = time.perf_counter()
    for _ in range(repeats):
        left @ right
    synchronise(device)
    return 2 * size**3 * repeats / (time.perf_counter() - started)


def waits_for_host(step: Callable[[], object]) -> bool:
    """Whether a step reads anything back from the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
