"""Masked autoencoder: encode the visible patches, predict the hidden ones, score only the hidden ones
(docs/method.md).

Legend: B chunks, L tokens (512, time-major), K kept tokens, C encoder and D decoder
channels; a patch has 256 values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mast_ray.models.decoder_local import ShiftedWindowBlock
from mast_ray.models.encoder import (
    NUM_TOKENS,
    PATCH,
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


@dataclass(frozen=True)
class DecoderShape:
    """Width, heads and the depth of either decoder."""

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
class AutoencoderArchitecture:
    """Everything needed to rebuild the network; goes into the model card."""

    encoder: EncoderSize = "base"
    decoder: DecoderName = "local"
    target: TargetName = "raw"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class MaskedReconstruction(NamedTuple):
    """Mean squared error over hidden patches, and what was predicted for every patch."""

    loss: Tensor  # ()
    prediction: Tensor  # (B, L, 256)


class PatchDecoder(nn.Module):
    """Puts mask tokens at hidden positions and predicts every patch; `global` keeps the class token,
    `local` drops it.
    """

    recomputes = False  # as the encoder's

    def __init__(self, name: DecoderName, encoder_width: int, shape: DecoderShape) -> None:
        super().__init__()
        self.name = name
        self.embed = nn.Linear(encoder_width, shape.width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.register_buffer("pos_embed", sincos_positions(shape.width))
        self.blocks = nn.ModuleList(_decoder_blocks(name, shape))
        self.norm = TransformerNorm(shape.width)
        self.predict = nn.Linear(shape.width, PATCH * PATCH)
        initialise_transformer(self)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, keep_index: Tensor) -> Tensor:
        """(B, 1 + K, C) encoded tokens -> (B, L, 256)"""
        tokens = to_compute_dtype(self.embed(tokens))
        first, visible = tokens[:, :1], tokens[:, 1:]
        hidden = self.mask_token.to(tokens.dtype).expand(len(tokens), NUM_TOKENS, -1)
        grid = hidden.scatter(1, keep_index[..., None].expand_as(visible), visible)  # (B, L, D)
        positions = self.pos_embed.to(tokens.dtype)
        match self.name:
            case "global":
                stream = torch.cat([first, grid], dim=1) + positions
            case "local":
                stream = grid + positions[:, 1:]
        stream = run_blocks(self.blocks, stream, self.recomputes)
        return self.predict(self.norm(stream[:, -NUM_TOKENS:]))


def _decoder_blocks(name: DecoderName, shape: DecoderShape) -> list[nn.Module]:
    match name:
        case "global":
            return [transformer_block(shape.width, shape.num_heads) for _ in range(shape.global_depth)]
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

    def forward(self, logmel: Tensor, mask: TokenMask) -> MaskedReconstruction:
        """(B, 1, T, F) normalised spectrograms -> loss on masked patches and the prediction of every patch"""
        patches = patches_of(logmel)
        tokens = self.encoder.forward_visible(patches, mask.keep_index)
        prediction = self.decoder(tokens, mask.keep_index)
        target = reconstruction_target(patches, self.architecture.target)
        error = (prediction.float() - target).square().mean(dim=-1)  # (B, L)
        return MaskedReconstruction((error * mask.is_masked).sum() / mask.is_masked.sum(), prediction)


def reconstruction_target(patches: Tensor, name: TargetName) -> Tensor:
    """(B, L, 256) -> (B, L, 256) float32: the patches, or each with zero mean and unit variance."""
    patches = patches.float()
    match name:
        case "raw":
            return patches
        case "patch_normalised":
            variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
            return (patches - mean) * (variance + 1e-6).rsqrt()
