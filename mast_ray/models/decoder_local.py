"""Shifted-window decoder block of AudioMAE: timm's Swin V2 "CR" block with a learned `tau` and explicit
(time, frequency) shifts.

timm's own block shifts both axes or none, stores 1 / tau as `logit_scale` (AudioMAE's checkpoints have `tau`), and
spells its attention out; here it runs in PyTorch's fused kernel.

Legend: B chunks, W windows per chunk, A = 4 x 4 tokens per window, C channels, N heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.models.encoder import TOKEN_GRID
from mast_ray.models.layers import Mlp, TransformerNorm, unit_length, window_partition, window_reverse

WINDOW = (4, 4)
META_HIDDEN = 384


class WindowAttention(nn.Module):
    """Cosine attention inside windows; cells that a cyclic shift brought together do not see each other."""

    def __init__(self, width: int, num_heads: int, shift: tuple[int, int]) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.meta_mlp = Mlp(2, META_HIDDEN, num_heads, act_layer=nn.ReLU)  # bias of a pair from its offset
        self.tau = nn.Parameter(torch.ones(num_heads))
        self.register_buffer("log_offset", log_offsets(), persistent=False)  # (A, A, 2)
        self.register_buffer("barrier", window_barrier(shift), persistent=False)  # (W, A, A)

    def forward(self, windows: Tensor) -> Tensor:
        """(B, W, A, C) -> (B, W, A, C)"""
        batch, num_windows, area, width = windows.shape
        heads = self.qkv(windows).view(batch, num_windows, area, 3, self.num_heads, -1)
        queries, keys, values = (
            heads.permute(3, 0, 1, 4, 2, 5).flatten(2, 3).unbind(0)
        )  # (B, W * N, A, C / N)
        temperature = self.tau.clamp(min=0.01).repeat(num_windows)[:, None, None]
        queries = (unit_length(queries) / temperature).to(values.dtype)
        keys = unit_length(keys).to(values.dtype)
        pair_bias = self.meta_mlp(self.log_offset.to(self.tau.dtype)).permute(2, 0, 1)  # (N, A, A)
        bias = (pair_bias + self.barrier[:, None]).flatten(0, 1).to(values.dtype)  # (W * N, A, A)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=bias[None], scale=1.0
        )
        mixed = mixed.unflatten(1, (num_windows, self.num_heads)).transpose(2, 3)
        return self.proj(mixed.reshape(batch, num_windows, area, width))


class ShiftedWindowBlock(nn.Module):
    """Window attention and feed-forward, each followed by its norm before it joins the residual stream."""

    def __init__(self, width: int, num_heads: int, shift: tuple[int, int]) -> None:
        super().__init__()
        self.shift = shift
        self.attn = WindowAttention(width, num_heads, shift)
        self.norm1 = TransformerNorm(width)
        self.mlp = Mlp(width, 4 * width)
        self.norm2 = TransformerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, 64 * 8, C) -> (B, 64 * 8, C)"""
        grid = tokens.unflatten(1, TOKEN_GRID)
        shifted = grid.roll((-self.shift[0], -self.shift[1]), (1, 2)) if any(self.shift) else grid
        mixed = windows_to_grid(self.attn(grid_to_windows(shifted)))
        mixed = mixed.roll(self.shift, (1, 2)) if any(self.shift) else mixed
        tokens = tokens + self.norm1(mixed.flatten(1, 2))
        return tokens + self.norm2(self.mlp(tokens))


def grid_to_windows(grid: Tensor) -> Tensor:
    """(B, 64, 8, C) -> (B, W, A, C)"""
    return window_partition(grid, WINDOW).view(len(grid), -1, WINDOW[0] * WINDOW[1], grid.shape[-1])


def windows_to_grid(windows: Tensor) -> Tensor:
    """(B, W, A, C) -> (B, 64, 8, C): inverse of grid_to_windows."""
    return window_reverse(windows, WINDOW, TOKEN_GRID)


def log_offsets() -> Tensor:
    """(A, A, 2) offset in time and frequency of every pair of cells of a window, log-spaced."""
    cells = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float32) for n in WINDOW))  # (A, 2)
    offset = cells[:, None] - cells[None]
    return offset.sign() * offset.abs().log1p()


def window_barrier(shift: tuple[int, int]) -> Tensor:
    """(W, A, A) additive mask: -100 between cells that are neighbours only because of the cyclic shift."""
    regions = [
        (torch.arange(size) >= size - step).long() if step else torch.zeros(size, dtype=torch.long)
        for size, step in zip(TOKEN_GRID, shift, strict=True)
    ]
    region = (regions[0][:, None] * 2 + regions[1][None]).float()  # (64, 8)
    region = grid_to_windows(region[None, ..., None])[0, ..., 0]  # (W, A)
    return torch.where(region[:, :, None] == region[:, None, :], 0.0, -100.0)
