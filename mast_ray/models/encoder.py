"""The patch encoder: a ViT on spectrograms (B, 1, T, F) of timm's parts; parameter names are those of timm's
and AudioMAE's ViT.

Legend: B chunks, T frames, F bins, L tokens (64 x 8 = 512, time-major: index = 8 * time + frequency), C
channels, K kept tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.models.layers import (
    PatchEmbed,
    TransformerNorm,
    initialise_transformer,
    run_blocks,
    to_compute_dtype,
    transformer_block,
)

EncoderSize = Literal["tiny", "compact", "small", "base", "large", "huge"]
PATCH = 16  # frames and bins
TOKEN_GRID = (64, 8)  # (time, frequency)
NUM_TOKENS = TOKEN_GRID[0] * TOKEN_GRID[1]


@dataclass(frozen=True)
class EncoderShape:
    """Width, depth and heads of a ViT."""

    width: int
    depth: int
    num_heads: int


ENCODER_SHAPES: dict[EncoderSize, EncoderShape] = {
    "tiny": EncoderShape(width=128, depth=4, num_heads=4),
    "compact": EncoderShape(width=256, depth=8, num_heads=4),
    "small": EncoderShape(width=384, depth=12, num_heads=6),
    "base": EncoderShape(width=768, depth=12, num_heads=12),
    "large": EncoderShape(width=1024, depth=24, num_heads=16),
    "huge": EncoderShape(width=1280, depth=32, num_heads=16),
}


def patches_of(logmel: Tensor) -> Tensor:
    """(B, 1, T, F) -> (B, L, 256): every 16 x 16 patch flattened time-major."""
    batch, _, frames, bins = logmel.shape
    grid = logmel.reshape(batch, frames // PATCH, PATCH, bins // PATCH, PATCH)
    return grid.transpose(2, 3).reshape(batch, -1, PATCH * PATCH)


def spectrogram_of(patches: Tensor, grid: tuple[int, int] = TOKEN_GRID) -> Tensor:
    """(B, L, 256) -> (B, 1, T, F): inverse of patches_of."""
    tiles = patches.reshape(len(patches), *grid, PATCH, PATCH).transpose(2, 3)
    return tiles.reshape(len(patches), 1, grid[0] * PATCH, grid[1] * PATCH)


def sincos_positions(width: int) -> Tensor:
    """(1, 1 + L, C) fixed positions: zeros for the class token, then half of the channels for frequency,
    half for time.
    """
    rates = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    time, frequency = torch.meshgrid(
        *(torch.arange(n, dtype=torch.float64) for n in TOKEN_GRID), indexing="ij"
    )
    angles = [axis.reshape(-1, 1) * rates for axis in (frequency, time)]  # (L, C / 4) each
    table = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return torch.cat([table.new_zeros(1, width), table]).float()[None]


class PatchEncoder(nn.Module):
    """ViT with a class token and fixed sin-cos positions; positions are a buffer,
    so a checkpoint brings its own.
    """

    recomputes = False  # whether blocks are computed again in the backward pass instead of kept

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = PatchEmbed(None, PATCH, in_chans=1, embed_dim=shape.width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.register_buffer("pos_embed", sincos_positions(shape.width))
        self.blocks = nn.ModuleList(
            transformer_block(shape.width, shape.num_heads) for _ in range(shape.depth)
        )
        self.norm = TransformerNorm(shape.width)
        initialise_transformer(self)
        nn.init.xavier_uniform_(self.patch_embed.proj.weight.flatten(1))
        nn.init.normal_(self.cls_token, std=0.02)

    def forward(self, logmel: Tensor) -> Tensor:
        """(B, 1, T, F) -> token map (B, C, 64, 8)"""
        tokens = self._embedded(patches_of(logmel))
        tokens = self._run_blocks(tokens + self.pos_embed[:, 1:].to(tokens.dtype))
        return tokens[:, 1:].unflatten(1, TOKEN_GRID).permute(0, 3, 1, 2)

    def forward_visible(self, patches: Tensor, keep_index: Tensor) -> Tensor:
        """(B, L, 256) patches, (B, K) kept positions -> (B, 1 + K, C), the class token first.

        Patches are gathered before they are embedded: hidden ones cost nothing.
        """
        visible = patches.gather(1, keep_index[..., None].expand(-1, -1, patches.shape[-1]))  # (B, K, 256)
        tokens = self._embedded(visible)
        return self._run_blocks(tokens + self.pos_embed[0, 1:].to(tokens.dtype)[keep_index])

    def _embedded(self, patches: Tensor) -> Tensor:
        """(B, K, 256) -> (B, K, C) by the weights of the projection as a matrix product: a convolution over one channel is slow
        on a GPU.
        """
        weight, bias = self.patch_embed.proj.weight.flatten(1), self.patch_embed.proj.bias
        return functional.linear(patches.to(weight.dtype), weight, bias)

    def _run_blocks(self, tokens: Tensor) -> Tensor:
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(tokens), -1, -1)
        tokens = to_compute_dtype(torch.cat([first.to(tokens.dtype), tokens], dim=1))
        return self.norm(run_blocks(self.blocks, tokens, self.recomputes))


def build_encoder(size: EncoderSize) -> PatchEncoder:
    """An encoder with fresh weights of the named size."""
    return PatchEncoder(ENCODER_SHAPES[size])
