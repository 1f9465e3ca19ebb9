"""timm's transformer block with a norm that keeps the residual stream in the compute type of the surrounding
autocast, and what else is borrowed of timm and torchvision.

Under autocast PyTorch runs norms in float32 and so keeps the residual stream in float32; here the stream
stays in the compute type (as under DeepSpeed's bf16), the norms reduce in float32 inside their kernels, and
memory traffic is halved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mast_ray.config.light_imports import import_lightly

# Whatever is borrowed of the two is imported by way of this module, after this line.
import_lightly("torchvision", "timm")

from timm.layers import Mlp as Mlp  # noqa: E402
from timm.layers import PatchEmbed as PatchEmbed  # noqa: E402
from timm.models.swin_transformer_v2_cr import window_partition as window_partition  # noqa: E402
from timm.models.swin_transformer_v2_cr import window_reverse as window_reverse  # noqa: E402
from timm.models.vision_transformer import Block  # noqa: E402
from torchvision.models.resnet import BasicBlock as BasicBlock  # noqa: E402
from torchvision.models.resnet import Bottleneck as Bottleneck  # noqa: E402
from torchvision.models.resnet import ResNet as ResNet  # noqa: E402


def to_compute_dtype(tokens: Tensor) -> Tensor:
    """Cast to the autocast type if autocast is on for this device."""
    device = tokens.device.type
    return tokens.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else tokens


def unit_length(vectors: Tensor) -> Tensor:
    """(..., C) -> (..., C) float32 of length one.

    Not functional.normalize: the kernel that Triton 3.6 is handed for its
    gradient does not compile on Hopper.
    """
    vectors = vectors.float()
    return vectors * torch.rsqrt(vectors.square().sum(dim=-1, keepdim=True) + 1e-12)


class TransformerNorm(nn.LayerNorm):
    """LayerNorm (eps 1e-6, as MAE) that returns the type it was given."""

    def __init__(self, width: int, **factory: Any) -> None:
        super().__init__(width, eps=1e-6, **factory)  # timm's blocks hand on device and dtype

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):
            weight, bias = self.weight.to(tokens.dtype), self.bias.to(tokens.dtype)
            return functional.layer_norm(tokens, self.normalized_shape, weight, bias, self.eps)


class Gelu(nn.GELU):
    """GELU; compiled with an error function of few steps, so that memory sets the pace and not arithmetic."""

    def forward(self, values: Tensor) -> Tensor:
        return self.in_few_steps(values) if torch.compiler.is_compiling() else super().forward(values)

    def in_few_steps(self, values: Tensor) -> Tensor:
        """x times the normal distribution up to x, by formula 7.1.26 of Abramowitz and Stegun (1.5e-7 off at the most), and its
        slope as it is, not the slope of the formula.
        """
        x = values.float()
        with torch.no_grad():
            bell = torch.exp(-0.5 * x * x)
            t = 1 / (1 + 0.3275911 * 0.5**0.5 * x.abs())
            polynomial = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
            tail = 0.5 * bell * t * (0.254829592 + t * (-0.284496736 + t * polynomial))
            share = torch.where(x < 0, tail, 1 - tail)
            beyond = x * bell * (2 * math.pi) ** -0.5  # of the slope over the share
        return ((x * (share + beyond)) - (x * beyond).detach()).to(values.dtype)


def transformer_block(width: int, num_heads: int) -> Block:
    """timm's pre-norm ViT block, (B, L, C) -> (B, L, C), with our norm."""
    return Block(width, num_heads, mlp_ratio=4.0, qkv_bias=True, norm_layer=TransformerNorm, act_layer=Gelu)


def run_blocks(blocks: Iterable[nn.Module], tokens: Tensor, recomputes: bool) -> Tensor:
    """(B, L, C) through all blocks. With `recomputes` only what goes into a block is kept for the backward pass, which
    computes the rest of it again: a third more arithmetic for a fraction of the memory.
    """
    for block in blocks:
        if recomputes and torch.is_grad_enabled():
            # no block draws random numbers: their state need not travel, and a CUDA graph can hold the step
            tokens = checkpoint(block, tokens, use_reentrant=False, preserve_rng_state=False)
        else:
            tokens = block(tokens)
    return tokens


def initialise_transformer(module: nn.Module) -> None:
    """Xavier weights and zero biases for linear layers, identity norms, as MAE does."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
