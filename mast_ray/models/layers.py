"""Transformer block and norms shared by encoder and decoders, in the compute
type of the surrounding autocast.

Under autocast PyTorch runs norms in float32 and so keeps the residual stream in float32; here the stream
stays in the compute type (as under DeepSpeed's bf16), the norms reduce in float32 inside their kernels, and
memory traffic is halved.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


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

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):
            weight, bias = self.weight.to(tokens.dtype), self.bias.to(tokens.dtype)
            return functional.layer_norm(tokens, self.normalized_shape, weight, bias, self.eps)


class SelfAttention(nn.Module):
    """Multi-head attention over all tokens by PyTorch's fused kernel; parameters named as timm's."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L, C) -> (B, L, C)"""
        queries, keys, values = (
            self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values)  # (B, heads, L, C / heads)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with GELU between; parameters named as timm's."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(tokens)))


class TransformerBlock(nn.Module):
    """Pre-norm block with the parameter names of timm's ViT block."""

    def __init__(self, width: int, num_heads: int, hidden_ratio: int = 4) -> None:
        super().__init__()
        self.norm1 = TransformerNorm(width)
        self.attn = SelfAttention(width, num_heads)
        self.norm2 = TransformerNorm(width)
        self.mlp = FeedForward(width, hidden_ratio * width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L, C) -> (B, L, C)"""
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


def initialise_transformer(module: nn.Module) -> None:
    """Xavier weights and zero biases for linear layers, identity norms, as MAE does."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
