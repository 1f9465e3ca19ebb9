"""`mast advise-upsampling`: which upsampling of the token grid fits a user's own boxes, by the paper's
bound on worst-case IoU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.models.upsampling_theory import UpsamplingAdvice, advise, optimal_ratio
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.spectrogram.grid import CHUNK_FRAMES, boxes_from_seconds_hertz, seconds_of_frames

HELP = "upsampling ratio and worst-case IoU that fit your own boxes"
BOX_COLUMNS = ("begin_s", "end_s", "low_hz", "high_hz")
_BUILT = (2, 4)  # what the upsampling adapter does


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--annotations",
        type=Path,
        required=True,
        metavar="TABLE",
        help="annotation table, or a folder of them",
    )
    add(
        "--budget",
        type=int,
        default=8,
        help="total upsampling u_t x u_f, a power of two (default 8, as 2 x 4)",
    )
    add("--out", type=Path, metavar="JSON", help="also write the figures to this file")


def run(args: argparse.Namespace) -> int:
    if args.budget < 1 or args.budget & (args.budget - 1):
        raise ConfigError(f"--budget {args.budget} is not a power of two: use 1, 2, 4, 8, 16 or 32")
    extents, num_left_out = box_extents(args.annotations)
    choices = advise(extents, args.budget)
    print(_text(extents, num_left_out, choices))
    if args.out:
        args.out.write_text(json.dumps(_figures(extents, num_left_out, choices), indent=2) + "\n")
    return 0


def box_extents(annotations: Path) -> tuple[np.ndarray, int]:
    """((N, 2) frames and bins of every box as a chunk sees it, how many labels were left out)."""
    labels = read_annotations(annotations).annotations
    timed = [label for label in labels if not label.is_time_only]
    extents = extents_of(*([getattr(label, name) for label in timed] for name in BOX_COLUMNS))
    if len(extents) == 0:
        raise DataError(
            f"{annotations}: none of {len(labels)} labels has a frequency band under 8 kHz:\n"
            "give a table with low and high frequencies"
        )
    return extents, len(labels) - len(extents)


def extents_of(
    begin_s: Sequence[float], end_s: Sequence[float], low_hz: Sequence[float], high_hz: Sequence[float]
) -> np.ndarray:
    """(N, 2) frames and bins of the boxes that have some under 8 kHz; an event longer
    than a chunk is cut into chunks.
    """
    columns = (np.asarray(column, np.float64) for column in (begin_s, end_s, low_hz, high_hz))
    boxes, is_representable = boxes_from_seconds_hertz(*columns)
    return np.minimum((boxes[:, 2:] - boxes[:, :2])[is_representable], (CHUNK_FRAMES, np.inf))


def size_lines(extents: np.ndarray) -> list[str]:
    """How large boxes are, and a word of warning where the detector's cells are
    too coarse for many of them.
    """
    frames, bins = np.median(extents, axis=0)
    built = next(choice for choice in advise(extents, _BUILT[0] * _BUILT[1]) if choice.factors == _BUILT)
    lines = [f"median box {seconds_of_frames(frames):.2f} s x {bins:.0f} of 128 mel bins"]
    if built.share_at_least_half < 0.5:
        lines += [
            f"only {100 * built.share_at_least_half:.0f} % of the boxes are so large that the detector's cells ("
            f"{seconds_of_frames(built.strides[0]):.2f} s x {built.strides[1]:g} bins) fit half of them wherever they lie:",
            "expect low F1 at IoU 0.5; one box around a whole song instead of one per syllable would help more than more data",
        ]
    return lines


def _figures(extents: np.ndarray, num_left_out: int, choices: list[UpsamplingAdvice]) -> dict[str, object]:
    return {
        "num_boxes": len(extents),
        "num_left_out": num_left_out,
        "median_frames": float(np.median(extents[:, 0])),
        "median_bins": float(np.median(extents[:, 1])),
        "median_optimal_ratio": float(np.median(optimal_ratio(extents))),
        "choices": [
            {
                "upsampling_time": choice.factors[0],
                "upsampling_frequency": choice.factors[1],
                "stride_frames": choice.strides[0],
                "stride_bins": choice.strides[1],
                "mean_bound": choice.mean_bound,
                "mean_worst_case_iou": choice.mean_worst,
                "share_of_boxes_at_least_half": choice.share_at_least_half,
            }
            for choice in choices
        ],
    }


def _text(extents: np.ndarray, num_left_out: int, choices: list[UpsamplingAdvice]) -> str:
    frames, bins = np.median(extents, axis=0)
    best = choices[0]
    lines = [
        f"{len(extents)} boxes ({num_left_out} labels without a usable band left out)",
        f"median extent {frames:.0f} frames ({seconds_of_frames(frames):.2f} s) x {bins:.0f} mel bins; "
        f"median optimal ratio u_f / u_t = {np.median(optimal_ratio(extents)):.2f}",
        "",
        "  u_t x u_f   stride (frames x bins)   mean bound   mean worst-case IoU   boxes with bound >= 0.5",
    ]
    for choice in choices:
        mark = "  <- upsampling adapter" if choice.factors == _BUILT else ""
        lines.append(
            f"  {choice.factors[0]:3d} x {choice.factors[1]:<3d}   {choice.strides[0]:10g} x {choice.strides[1]:<9g}"
            f"   {choice.mean_bound:10.3f}   {choice.mean_worst:19.3f}   {100 * choice.share_at_least_half:20.1f} %{mark}"
        )
    lines += [
        "",
        f"recommended: {best.factors[0]} x {best.factors[1]} (ratio {best.ratio:g}): expected worst-case IoU at most "
        f"{best.mean_bound:.3f} by the bound, {best.mean_worst:.3f} at the worst placement",
    ]
    return "\n".join(lines)
