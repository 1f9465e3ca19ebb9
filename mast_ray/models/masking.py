"""Which tokens a masked autoencoder sees: a fixed number per chunk, drawn on the
device without host synchronisation.

Legend: B chunks, L = 64 x 8 tokens (time-major), K kept tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mast_ray.config.errors import ConfigError
from mast_ray.models.encoder import NUM_TOKENS, TOKEN_GRID

MaskingName = Literal["structured", "random"]


class TokenMask(NamedTuple):
    """Kept tokens and their complement."""

    keep_index: Tensor  # (B, K) int64, ascending
    is_masked: Tensor  # (B, L) bool


@dataclass(frozen=True)
class Masking:
    """`structured` keeps an outer product of time columns and frequency rows, `random` keeps tokens
    independently.
    """

    name: MaskingName = "structured"
    time_ratio: float = 0.6
    frequency_ratio: float = 0.3
    random_ratio: float = 0.75

    def __post_init__(self) -> None:
        if 0 < self.num_kept < NUM_TOKENS:
            return
        match self.name:
            case "structured":
                knobs = f"pretrain.time_mask={self.time_ratio:g} and pretrain.frequency_mask={self.frequency_ratio:g}"
                remedy = "--set pretrain.time_mask=0.6 --set pretrain.frequency_mask=0.3"
            case "random":
                knobs, remedy = (
                    f"pretrain.random_mask={self.random_ratio:g}",
                    "--set pretrain.random_mask=0.75",
                )
        fault = "hide no patch: nothing to predict" if self.num_kept else "hide every patch: nothing to see"
        grid = f"{TOKEN_GRID[0]} time columns and {TOKEN_GRID[1]} frequency rows"
        raise ConfigError(f"{knobs} {fault}\nof {grid} some must stay and some must go, e.g. {remedy}")

    @property
    def num_kept(self) -> int:
        """25 x 5 = 125 tokens for the structured default, 128 for random 0.75."""
        match self.name:
            case "structured":
                return _kept(TOKEN_GRID[0], self.time_ratio) * _kept(TOKEN_GRID[1], self.frequency_ratio)
            case "random":
                return _kept(NUM_TOKENS, self.random_ratio)

    def draw(self, batch: int, generator: torch.Generator) -> TokenMask:
        """Masks of `batch` chunks, on the generator's device."""
        device = generator.device
        noise = lambda size: torch.rand((batch, size), generator=generator, device=device)  # noqa: E731
        match self.name:
            case "structured":
                times = _smallest(noise(TOKEN_GRID[0]), _kept(TOKEN_GRID[0], self.time_ratio))
                rows = _smallest(noise(TOKEN_GRID[1]), _kept(TOKEN_GRID[1], self.frequency_ratio))
                keep_index = (times[:, :, None] * TOKEN_GRID[1] + rows[:, None, :]).flatten(1)
            case "random":
                keep_index = _smallest(noise(NUM_TOKENS), _kept(NUM_TOKENS, self.random_ratio))
        is_masked = torch.ones((batch, NUM_TOKENS), dtype=torch.bool, device=device)
        return TokenMask(keep_index, is_masked.scatter(1, keep_index, False))

    def fixed(self, chunk_ids: Sequence[str], seed: int, device: torch.device | str) -> TokenMask:
        """The same mask for a chunk in every evaluation, whatever the batch, order or number of workers."""
        generator = torch.Generator()
        draws = [
            self.draw(1, generator.manual_seed(zlib.crc32(f"{seed}:{name}".encode()))) for name in chunk_ids
        ]
        return TokenMask(*(torch.cat(parts).to(device) for parts in zip(*draws, strict=True)))


def _kept(size: int, ratio: float) -> int:
    return int(size * (1.0 - ratio))


def _smallest(noise: Tensor, count: int) -> Tensor:
    """(B, n) -> (B, count): positions of the smallest values, ascending."""
    return noise.topk(count, dim=1, largest=False).indices.sort(dim=1).values
