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
    the unknown is cut into bands and stretches.
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
    return np.bincount(box, share, minlength=len(group)) >= LEAST_SHARE - 1e-9


def _span(first: Floats, second: Floats) -> Floats:
    """(K,) length shared by [begin, end) pairs (K, 2); NaN where one has no limits."""
    return np.maximum(np.minimum(first[:, 1], second[:, 1]) - np.maximum(first[:, 0], second[:, 0]), 0.0)
