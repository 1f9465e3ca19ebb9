"""Which detections are worth keeping: long enough, high enough, not a whole chunk.

Legend: ... leading dimensions. Boxes are (..., 4) = (t0, f0, t1, f1) in frames and bins of their chunk.
"""

from __future__ import annotations

from torch import Tensor

SHORTEST_FRAMES = 10.0  # 100 ms
LOWEST_BINS = 2.0
BORDER_FRAMES = 0.5


def is_valid_box(
    boxes: Tensor,
    num_frames: float = 1024,
    shortest_frames: float = SHORTEST_FRAMES,
    lowest_bins: float = LOWEST_BINS,
) -> Tensor:
    """(..., 4) -> (...) bool: at least 100 ms and 2 bins, and not touching both time borders of its chunk.

    A box that reaches within half a frame of a border touches it: predicted corners are floats. With infinite `num_frames`
    none touches both: detections are stitched first, and this asks for their size only.
    """
    length, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    spans_chunk = (boxes[..., 0] <= BORDER_FRAMES) & (boxes[..., 2] >= num_frames - BORDER_FRAMES)
    return (length >= shortest_frames) & (height >= lowest_bins) & ~spans_chunk
