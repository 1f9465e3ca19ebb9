"""A spectrogram with boxes: annotations green and solid, detections blue and
dashed, seconds along, kilohertz up.

The frequency axis is the mel scale of the spectrogram itself. Loud is dark on white, so that both box colours
(Okabe and Ito's, distinguishable without red-green vision) stand out and the picture prints. Each frame is
drawn at the middle of its 25 ms window, so a box in seconds sits where the sound is.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from mast_ray.spectrogram.grid import (
    FRAME_LENGTH_SAMPLES,
    HIGH_HZ,
    LOW_HZ,
    NUM_BINS,
    SAMPLE_RATE_HZ,
    hertz_to_bin,
    seconds_of_frames,
)

TRUTH_COLOUR, DETECTION_COLOUR = "#009e73", "#0050a0"
_TRUTH_WIDTH, _DETECTION_WIDTH, _DASHES = 2.2, 1.5, (0, (4, 3))
_TICKS_KHZ = (0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8)
_FIRST_EDGE_S = 0.5 * FRAME_LENGTH_SAMPLES / SAMPLE_RATE_HZ - float(seconds_of_frames(0.5))
_DECIBEL_PER_LOG = 10.0 / np.log(10.0)


@dataclass(frozen=True)
class FigureBox:
    """A box to draw, in seconds of the recording and hertz; a band of None is drawn over all frequencies."""

    begin_s: float
    end_s: float
    low_hz: float | None
    high_hz: float | None
    label: str = ""
    score: float | None = None


def spectrogram_figure(
    logmel: NDArray[np.floating],
    truth: Sequence[FigureBox] = (),
    detections: Sequence[FigureBox] = (),
    title: str = "",
    start_s: float = 0.0,
) -> Figure:
    """Draw (n, F) log-mel frames that begin at `start_s`, with the boxes that touch them."""
    seconds = seconds_of_frames(len(logmel))
    figure = Figure(figsize=(float(np.clip(1.5 + 0.95 * seconds, 5.0, 24.0)), 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_spectrogram(axes, logmel, start_s)
    draw_boxes(axes, truth, detections)
    if title:
        axes.set_title(title, loc="left", fontsize=10)
    handles = []
    if truth:
        handles.append(Line2D([], [], color=TRUTH_COLOUR, lw=_TRUTH_WIDTH, label="annotated"))
    if detections:
        handles.append(
            Line2D([], [], color=DETECTION_COLOUR, lw=_DETECTION_WIDTH, ls=_DASHES, label="detected")
        )
    if handles:
        axes.legend(
            handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=9
        )
    return figure


def draw_spectrogram(axes: Axes, logmel: NDArray[np.floating], start_s: float = 0.0) -> None:
    """The picture and its axes, without boxes."""
    level_db = _without_tilt(_DECIBEL_PER_LOG * np.asarray(logmel, np.float32))
    quiet, loud = np.percentile(level_db, (20.0, 99.7)) if level_db.size else (0.0, 1.0)
    begin_s = start_s + _FIRST_EDGE_S
    end_s = begin_s + float(seconds_of_frames(len(level_db)))
    axes.imshow(
        level_db.T,
        origin="lower",
        aspect="auto",
        cmap="Greys",
        vmin=quiet - 3.0,
        vmax=max(loud, quiet + 25.0),
        extent=(begin_s, end_s, -0.5, NUM_BINS - 0.5),
        interpolation="nearest",
    )
    axes.set_yticks(
        [float(hertz_to_bin(1000.0 * khz)) for khz in _TICKS_KHZ], [f"{khz:g}" for khz in _TICKS_KHZ]
    )
    axes.set_ylim(-0.5, NUM_BINS - 0.5)
    axes.set_xlim(start_s, start_s + float(seconds_of_frames(len(level_db))))
    axes.set_xlabel("seconds")
    axes.set_ylabel("kHz (mel scale)")
    axes.tick_params(labelsize=9)


def draw_boxes(
    axes: Axes,
    truth: Sequence[FigureBox],
    detections: Sequence[FigureBox],
) -> None:
    """Boxes that touch the picture; labels of annotations stand above their boxes, those of detections below.

    Detections lie on top because their dashes let the truth shine through.
    """
    left, right = axes.get_xlim()
    styles = (
        (truth, TRUTH_COLOUR, _TRUTH_WIDTH, "solid", True),
        (detections, DETECTION_COLOUR, _DETECTION_WIDTH, _DASHES, False),
    )
    for boxes, colour, width, dashes, is_above in styles:
        for box in boxes:
            low = float(hertz_to_bin(max(box.low_hz if box.low_hz is not None else LOW_HZ, LOW_HZ)))
            high = float(hertz_to_bin(min(box.high_hz if box.high_hz is not None else HIGH_HZ, HIGH_HZ)))
            begin_s, end_s = max(box.begin_s, left), min(box.end_s, right)
            if begin_s >= end_s or low >= high:
                continue
            patch = Rectangle(
                (begin_s, low), end_s - begin_s, high - low, fill=False, edgecolor=colour, zorder=3
            )
            patch.set_linewidth(width)
            patch.set_linestyle(dashes)
            axes.add_patch(patch)
            text = box.label if box.score is None else f"{box.label} {box.score:.2f}".strip()
            if text:
                _write_label(axes, text, begin_s, (low, high), colour, is_above)


def _write_label(
    axes: Axes, text: str, begin_s: float, band: tuple[float, float], colour: str, is_above: bool
) -> None:
    """A small text over or under a box, on the other side where the picture ends."""
    low, high = band
    is_above = high < NUM_BINS - 8 if is_above else low < 8
    axes.annotate(
        text,
        (begin_s, high if is_above else low),
        xytext=(0, 2 if is_above else -2),
        textcoords="offset points",
        va="bottom" if is_above else "top",
        fontsize=7,
        color=colour,
        clip_on=True,
        zorder=4,
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )


def _without_tilt(level_db: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subtract a parabola over the bins' medians: recorders are bass-heavy,
    pre-emphasis is not; steady bands stay.
    """
    if len(level_db) < 2:
        return level_db
    place = np.linspace(-1.0, 1.0, NUM_BINS)
    return level_db - np.polyval(np.polyfit(place, np.median(level_db, axis=0), 2), place).astype(np.float32)


def png_bytes(figure: Figure) -> bytes:
    """The picture as a PNG file; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
