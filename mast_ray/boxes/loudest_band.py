"""Where in frequency a call is to be sought whose label says only when it was: where its time stands out most.

Without a band the points nearest to the middle of the spectrum would have to learn every call, wherever it sounds, and
those that hear it would learn nothing. Legend: B chunks, M box slots, T frames, F bins. Boxes are (t0, f0, t1, f1).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from mast_ray.boxes.batch import PaddedBoxes

SMOOTHED_BINS = 5  # a single loud bin is no call
LEAST_BINS = 8  # two cells of the finest level: some point must lie inside
# Padding stays as it is, but for a little noise that training may add; sound that far apart is never so much alike.
STILL, STILL_FRAMES = 0.2, 4


def with_loudest_band(boxes: PaddedBoxes, logmel: Tensor) -> PaddedBoxes:
    """Boxes in which every call that is known in time only has the band where (B, 1, T, F) is loudest in its time, against
    the rest of the chunk's sound. Its flags stay: the band says where to look, and is not learned.
    """
    low, high = loudest_band(boxes.corners, logmel[:, 0])
    t0, f0, t1, f1 = boxes.corners.unbind(-1)
    in_time = boxes.is_time_only
    corners = torch.stack((t0, torch.where(in_time, low, f0), t1, torch.where(in_time, high, f1)), dim=-1)
    return replace(boxes, corners=corners)


def loudest_band(corners: Tensor, logmel: Tensor) -> tuple[Tensor, Tensor]:
    """(B, M, 4) boxes in (B, T, F) -> first bin and end of the band in which each one's time stands out, (B, M) both.

    The band reaches from the bin that gains most over the mean of the chunk's sound to where the gain has halved. Padding
    does not count: against silence every bin gains, and the band of a call in a clip of five seconds would be all there is.
    """
    num_frames, num_bins = logmel.shape[1:]
    rising = functional.pad(logmel.float().cumsum(1), (0, 0, 1, 0))  # (B, T + 1, F)
    begin = corners[..., 0].floor().clamp(0, num_frames - 1).long()  # (B, M)
    end = torch.maximum(corners[..., 2].ceil().clamp(0, num_frames).long(), begin + 1)
    sums = [rising.gather(1, at[..., None].expand(-1, -1, num_bins)) for at in (begin, end)]
    heard = is_sound(logmel)[..., None].float()  # (B, T, 1)
    usual = (logmel.float() * heard).sum(1, keepdim=True) / heard.sum(1, keepdim=True)  # (B, 1, F)
    gain = (sums[1] - sums[0]) / (end - begin)[..., None] - usual  # (B, M, F)
    gain = functional.avg_pool1d(gain, SMOOTHED_BINS, 1, SMOOTHED_BINS // 2, count_include_pad=False)
    best, peak = gain.max(-1, keepdim=True)
    at = torch.arange(num_bins, device=corners.device)
    is_less = gain < best / 2
    low = torch.where(is_less & (at < peak), at, -1).amax(-1) + 1
    high = torch.where(is_less & (at > peak), at, num_bins).amin(-1)
    missing = (LEAST_BINS - (high - low)).clamp(min=0)
    low = (low - missing // 2).clamp(0, num_bins - LEAST_BINS)
    return low.to(corners.dtype), torch.maximum(high, low + LEAST_BINS).to(corners.dtype)


def is_sound(logmel: Tensor) -> Tensor:
    """(B, T, F) -> (B, T) which frames are no padding: they differ from those before and behind. All, where nothing does."""
    change = (logmel[:, STILL_FRAMES:] - logmel[:, :-STILL_FRAMES]).abs().mean(-1)
    before = torch.cat(
        (change[:, :STILL_FRAMES], change), dim=1
    )  # (B, T); at the borders the other side speaks
    behind = torch.cat((change, change[:, -STILL_FRAMES:]), dim=1)
    differs = torch.minimum(before, behind) > STILL
    return differs | ~differs.any(1, keepdim=True)
