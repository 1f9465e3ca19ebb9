"""Masked autoencoder: encode the visible patches, predict the hidden ones, score only the hidden ones
(docs/method.md). Beside it, where the detector will have one, a side path learns from hidden patches of its own.

Legend: B chunks, L tokens (512, time-major), K kept tokens, C encoder and D decoder
channels; a patch has 256 values. T frames, F bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.boxes.points import FINEST_STRIDES, FinestLevel
from mast_ray.models.adapters import SidePath
from mast_ray.models.convolutions import ConvNormAct, SharedBatchNorm
from mast_ray.models.decoder_local import ShiftedWindowBlock
from mast_ray.models.encoder import (
    NUM_TOKENS,
    PATCH,
    TOKEN_GRID,
    EncoderSize,
    PatchEncoder,
    build_encoder,
    patches_of,
    sincos_positions,
)
from mast_ray.models.layers import (
    TransformerNorm,
    initialise_transformer,
    run_blocks,
    to_compute_dtype,
    transformer_block,
)
from mast_ray.models.masking import TokenMask

DecoderName = Literal["global", "local"]
TargetName = Literal["raw", "patch_normalised"]
SIDE = "side."  # weights of the side path begin so; AudioMAE has none
DECODER = "decoder."
GLOBAL_HEAD_WIDTH = 64  # AudioMAE's has 32: as much arithmetic, for which a GPU needs twice the time


@dataclass(frozen=True)
class DecoderShape:
    """Width and depth of either decoder, and heads of the local one; a head of the global one is as wide as the encoder's."""

    width: int
    num_heads: int
    global_depth: int
    local_depth: int


DECODER_SHAPES: dict[EncoderSize, DecoderShape] = {
    "tiny": DecoderShape(width=128, num_heads=4, global_depth=2, local_depth=4),
    "compact": DecoderShape(width=192, num_heads=6, global_depth=4, local_depth=8),
    "small": DecoderShape(width=256, num_heads=8, global_depth=4, local_depth=8),
    "base": DecoderShape(width=512, num_heads=16, global_depth=8, local_depth=16),
    "large": DecoderShape(width=512, num_heads=16, global_depth=8, local_depth=16),
    "huge": DecoderShape(width=512, num_heads=16, global_depth=8, local_depth=16),
}


@dataclass(frozen=True)
class SideShape:
    """What rebuilds a detector's side path."""

    channels: int
    finest: FinestLevel = "8x4"
    num_levels: int = 4


@dataclass(frozen=True)
class AutoencoderArchitecture:
    """Everything needed to rebuild the network; goes into the model card."""

    encoder: EncoderSize = "base"
    decoder: DecoderName = "local"
    target: TargetName = "raw"
    side: SideShape | None = None  # None: the encoder alone


class MaskedReconstruction(NamedTuple):
    """Mean squared error over hidden patches, what was predicted for every patch, and the side path's own error."""

    loss: Tensor  # ()
    prediction: Tensor  # (B, L, 256)
    side_loss: Tensor | None = None  # ()


class PatchDecoder(nn.Module):
    """Puts mask tokens at hidden positions and predicts every patch. The class token ends with the encoder: it stands for no
    patch, and attention over 513 tokens takes a GPU a third longer than over 512.
    """

    recomputes = False  # as the encoder's

    def __init__(self, name: DecoderName, encoder_width: int, shape: DecoderShape) -> None:
        super().__init__()
        self.name = name
        self.embed = nn.Linear(encoder_width, shape.width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        positions = sincos_positions(shape.width)
        if (
            name == "global"
        ):  # without the class token's row: weights of the decoder that had one are of another shape
            positions = positions[:, 1:].clone()
        self.register_buffer("pos_embed", positions)
        self.blocks = nn.ModuleList(_decoder_blocks(name, shape))
        self.norm = TransformerNorm(shape.width)
        self.predict = nn.Linear(shape.width, PATCH * PATCH)
        initialise_transformer(self)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, keep_index: Tensor) -> Tensor:
        """(B, 1 + K, C) encoded tokens -> (B, L, 256)"""
        visible = to_compute_dtype(self.embed(tokens[:, 1:]))
        hidden = self.mask_token.to(visible.dtype).expand(len(visible), NUM_TOKENS, -1)
        grid = hidden.scatter(1, keep_index[..., None].expand_as(visible), visible)  # (B, L, D)
        stream = grid + self.pos_embed[:, -NUM_TOKENS:].to(visible.dtype)
        return self.predict(self.norm(run_blocks(self.blocks, stream, self.recomputes)))


def _decoder_blocks(name: DecoderName, shape: DecoderShape) -> list[nn.Module]:
    match name:
        case "global":
            num_heads = shape.width // GLOBAL_HEAD_WIDTH
            return [transformer_block(shape.width, num_heads) for _ in range(shape.global_depth)]
        case "local":
            shifts = [(0, 0) if index % 2 == 0 else (2, 0) for index in range(shape.local_depth)]
            return [ShiftedWindowBlock(shape.width, shape.num_heads, shift) for shift in shifts]


class MaskedAutoencoder(nn.Module):
    """Encoder and decoder; masks are handed in."""

    def __init__(self, architecture: AutoencoderArchitecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.encoder: PatchEncoder = build_encoder(architecture.encoder)
        shape = DECODER_SHAPES[architecture.encoder]
        self.decoder = PatchDecoder(architecture.decoder, self.encoder.shape.width, shape)
        self.side = None if architecture.side is None else SideAutoencoder(architecture.side)

    def forward(self, logmel: Tensor, mask: TokenMask) -> MaskedReconstruction:
        """(B, 1, T, F) normalised spectrograms -> loss on masked patches and the prediction of every patch"""
        patches = patches_of(logmel)
        tokens = self.encoder.forward_visible(patches, mask.keep_index)
        prediction = self.decoder(tokens, mask.keep_index)
        target = reconstruction_target(patches, self.architecture.target)
        error = (prediction.float() - target).square().mean(dim=-1)  # (B, L)
        loss = (error * mask.is_masked).sum() / mask.is_masked.sum()
        # which squares are hidden follows from the mask: as random as it is, and the same for the same mask
        side_loss = None if self.side is None else self.side(logmel, mask.keep_index.sum(dim=1) % 2)
        return MaskedReconstruction(loss, prediction, side_loss)


def reconstruction_target(patches: Tensor, name: TargetName) -> Tensor:
    """(B, L, 256) -> (B, L, 256) float32: the patches, or each with zero mean and unit variance."""
    patches = patches.float()
    match name:
        case "raw":
            return patches
        case "patch_normalised":
            variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
            return (patches - mean) * (variance + 1e-6).rsqrt()


class SideAutoencoder(nn.Module):
    """The side path of a detector and a light decoder: its maps joined at the finest, then every cell's values.

    Patches are hidden like the black squares of a chessboard and predicted from the white ones: convolutions need
    neighbours, and the encoder's mask, which hides three quarters in whole columns and rows, leaves most places none.
    """

    def __init__(self, shape: SideShape) -> None:
        super().__init__()
        self.stride = FINEST_STRIDES[shape.finest]
        self.path = SidePath(shape.channels, shape.finest, shape.num_levels)
        self.joints = nn.ModuleList(
            nn.Conv2d(width, shape.channels, 1, bias=False) for width in self.path.widths[1:]
        )
        self.refine = ConvNormAct(shape.channels, shape.channels, norm=SharedBatchNorm)
        self.predict = nn.Conv2d(shape.channels, self.stride[0] * self.stride[1], 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, logmel: Tensor, is_odd: Tensor) -> Tensor:
        """(B, 1, T, F) normalised spectrograms, (B,) which squares are hidden -> () mean squared error on them"""
        is_hidden = chessboard(is_odd)  # (B, 1, T, F)
        finest, *above = self.path.maps(logmel.masked_fill(is_hidden, 0.0))
        for joint, features in zip(self.joints, above, strict=True):
            finest = finest + functional.interpolate(joint(features), finest.shape[2:], mode="nearest")
        prediction = self.predict(self.refine(finest)).float()  # (B, cell, T / stride, F / stride)
        error = (prediction - cells_of(logmel.float(), self.stride)).square()
        hidden = cells_of(is_hidden.float(), self.stride)
        return (error * hidden).sum() / hidden.sum()


def chessboard(is_odd: Tensor) -> Tensor:
    """(B,) 0 or 1 -> (B, 1, T, F) whether a value lies in a hidden patch: every second one in time and frequency"""
    time, frequency = (torch.arange(length, device=is_odd.device) for length in TOKEN_GRID)
    hidden = (time[:, None] + frequency + is_odd[:, None, None]) % 2 == 1  # (B, 64, 8)
    return hidden.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)[:, None]


def cells_of(values: Tensor, stride: tuple[int, int]) -> Tensor:
    """(B, 1, T, F) -> (B, frames x bins of a cell, T / frames, F / bins)"""
    num_chunks, _, num_frames, num_bins = values.shape
    frames, bins = stride
    grid = values.reshape(num_chunks, num_frames // frames, frames, num_bins // bins, bins)
    return grid.permute(0, 2, 4, 1, 3).flatten(1, 2)
