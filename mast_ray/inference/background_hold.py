"""Segments of recordings under way, held until the background of their stretch is known, and let go without it.

Legend: N segments, F bins. Pieces of several recordings come in turn. Held segments are float16 on the device:
180 MB for the two hours that a long recording has open at most, less for a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mast_ray.spectrogram.background import BackgroundStream, Stretch
from mast_ray.spectrogram.grid import SEGMENT_FRAMES
from mast_ray.spectrogram.normalisation import DEEPEST_BELOW_BACKGROUND


class Pushed(NamedTuple):
    """Consecutive segments of a recording."""

    recording: str
    first_segment: int
    num_segments: int
    is_last: bool = False
    num_frames: int | None = None  # valid ones of the whole recording; None: not known yet, or rejected


@dataclass
class _Open:
    stream: BackgroundStream
    next_segment: int = 0  # the next one to let go
    held: list[Tensor] = field(default_factory=list)  # (n, 512, F) float16


class BackgroundHold:
    """`released` takes pieces in and gives back those whose background is known."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self._open: dict[str, _Open] = {}

    def released(self, logmel: Tensor | None, pushed: list[Pushed]) -> tuple[Tensor | None, list[Pushed]]:
        """(N, 512, F) log-mel of the pushed segments -> that of the ones let go, less their background."""
        parts: list[Tensor] = []
        gone: list[Pushed] = []
        row = 0
        for piece in pushed:
            state = self._open.setdefault(piece.recording, _Open(BackgroundStream(self._device)))
            stretches: list[Stretch] = []
            if piece.num_segments:
                assert logmel is not None
                segments = logmel[row : row + piece.num_segments]
                row += piece.num_segments
                stretches = state.stream.push(segments, _valid_frames(piece))
                state.held.append(segments.half())
            is_whole = piece.is_last and piece.num_frames is not None
            stretches += state.stream.finish() if is_whole else []
            for stretch in stretches:
                parts.append(_let_go(state, stretch))
                gone.append(
                    Pushed(
                        piece.recording,
                        stretch.first_segment,
                        stretch.num_segments,
                        num_frames=piece.num_frames,
                    )
                )
            if piece.is_last:
                del self._open[piece.recording]  # what a rejected recording still holds goes with it
                gone.append(Pushed(piece.recording, state.next_segment, 0, is_last=True))
        return (torch.cat(parts) if parts else None), gone


def _valid_frames(piece: Pushed) -> int | None:
    if piece.num_frames is None:
        return None
    before = piece.first_segment * SEGMENT_FRAMES
    return min(max(0, piece.num_frames - before), piece.num_segments * SEGMENT_FRAMES)


def _let_go(state: _Open, stretch: Stretch) -> Tensor:
    """(n, 512, F) float16: the segments of a stretch without its background; the others stay."""
    held = torch.cat(state.held)
    out, rest = held[: stretch.num_segments], held[stretch.num_segments :]
    state.held = [rest.clone()] if len(rest) else []
    state.next_segment += stretch.num_segments
    return (out - stretch.background).clamp(min=-DEEPEST_BELOW_BACKGROUND).half()
