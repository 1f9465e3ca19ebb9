"""Where nobody looked, or nobody was sure, a detection is neither right nor wrong: it is left out unless it hits a truth.

Legend: D detections, R regions. Boxes are (t0, f0, t1, f1) in any unit; a region without limits in frequency has NaN there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mast_ray.evaluation.breakdown import subset
from mast_ray.evaluation.matching import Matches

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LEAST_SHARE = 0.5  # of a detection that must lie in regions


def judged(matches: Matches, boxes: Floats, region_group: Ints, regions: Floats) -> tuple[Matches, Bools]:
    """The matches without detections that hit nothing and lie in a region of their group, and (D,) which are left."""
    left = matches.is_true_positive | ~in_regions(matches.group, boxes, region_group, regions)
    return subset(matches, left, np.ones(matches.num_truth, bool)), left


def in_regions(group: Ints, boxes: Floats, region_group: Ints, regions: Floats) -> Bools:
    """(D,) whether half of a box or more lies in the regions of its group together: around a box that was judged alone
    the unknown is cut into bands and stretches. Where regions overlap (two people were unsure) they count once.
    """
    if not len(group) or not len(region_group):
        return np.zeros(len(group), bool)
    # All groups lie on one line, further apart than anything reaches; boxes that begin in a region's reach may touch it.
    origin = min(boxes[:, 0].min(), regions[:, 0].min())
    stride = 2.0 * (max(boxes[:, 2].max(), regions[:, 2].max()) - origin + 1.0)
    begin = group * stride + (boxes[:, 0] - origin)
    order = np.argsort(begin)
    longest = float((boxes[:, 2] - boxes[:, 0]).max())
    at = region_group * stride - origin
    first = np.searchsorted(begin[order], at + regions[:, 0] - longest, side="left")
    count = np.searchsorted(begin[order], at + regions[:, 2], side="left") - first
    region = np.repeat(np.arange(len(regions)), count)
    offset = np.arange(len(region)) - np.repeat(np.cumsum(count) - count, count)
    box = order[np.repeat(first, count) + offset]
    shared = _span(boxes[box, 0::2], regions[region, 0::2])
    band = _span(boxes[box, 1::2], regions[region, 1::2])
    height = boxes[box, 3] - boxes[box, 1]
    share_of_band = np.where(np.isnan(band) | (height <= 0), 1.0, band / np.where(height > 0, height, 1.0))
    length = boxes[box, 2] - boxes[box, 0]
    share = shared * share_of_band / np.where(length > 0, length, 1.0)
    share = np.where(group[box] == region_group[region], np.where(length > 0, share, 1.0), 0.0)
    enough = LEAST_SHARE - 1e-9
    inside = np.zeros(len(group), bool)
    inside[box[share >= enough]] = True
    in_doubt = (np.bincount(box, share, minlength=len(group)) >= enough) & ~inside
    if in_doubt.any():  # only by several regions together, which may overlap
        pair = np.flatnonzero(in_doubt[box] & (share > 0))
        pair = pair[np.argsort(box[pair], kind="stable")]
        inside[in_doubt] = _union_shares(box[pair], boxes[box[pair]], regions[region[pair]]) >= enough
    return inside


def _union_shares(number: Ints, boxes: Floats, regions: Floats) -> Floats:
    """(B,) the part of each box that lies in its regions together, from K pairs of both; `number` (K,), ascending, says
    which pairs are of one box.
    """
    in_time, in_band = (_part(boxes[:, axis::2], regions[:, axis::2]) for axis in (0, 1))
    ends = np.flatnonzero(np.diff(number)) + 1
    parts = zip(np.split(in_time, ends), np.split(in_band, ends), strict=True)
    return np.array([_union_share(*part) for part in parts])


def _part(whole: Floats, other: Floats) -> Floats:
    """(K, 2) which part of [begin, end) lies in the other, as shares from 0 to 1; all of it where one has no limits."""
    length = (whole[:, 1] - whole[:, 0])[:, None]
    part = np.clip((other - whole[:, :1]) / np.where(length > 0, length, 1.0), 0.0, 1.0)
    is_all = np.isnan(part).any(1, keepdims=True) | ~(length > 0)
    return np.where(is_all, [0.0, 1.0], part)


def _union_share(in_time: Floats, in_band: Floats) -> float:
    """Area of the union of rectangles (K, 2) x (K, 2) in the unit square: cut at all their edges, cells that lie in one
    or more add up.
    """
    edges_time, row = np.unique(in_time, return_inverse=True)
    edges_band, column = np.unique(in_band, return_inverse=True)
    row, column = row.reshape(in_time.shape), column.reshape(in_band.shape)
    change = np.zeros((len(edges_time), len(edges_band)), np.int64)  # of how many lie over a cell
    for side, sign in ((0, 1), (1, -1)):
        np.add.at(change, (row[:, side], column[:, 0]), sign)
        np.add.at(change, (row[:, side], column[:, 1]), -sign)
    is_covered = change.cumsum(0).cumsum(1)[:-1, :-1] > 0
    return float(np.diff(edges_time) @ is_covered @ np.diff(edges_band))


def _span(first: Floats, second: Floats) -> Floats:
    """(K,) length shared by [begin, end) pairs (K, 2); NaN where one has no limits."""
    return np.maximum(np.minimum(first[:, 1], second[:, 1]) - np.maximum(first[:, 0], second[:, 0]), 0.0)
