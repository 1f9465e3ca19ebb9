"""Spectrograms with boxes: what is drawn lies where the sound is."""

import io

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from mast_ray.reporting.figures import (
    DETECTION_COLOUR,
    TRUTH_COLOUR,
    FigureBox,
    png_bytes,
    spectrogram_figure,
)
from mast_ray.spectrogram.grid import hertz_to_bin
from mast_ray.spectrogram.logmel import LogMel

TONE = FigureBox(2.0, 3.0, 1800.0, 2200.0, "tone")


@pytest.fixture(scope="module")
def logmel() -> np.ndarray:
    """Five seconds of faint noise with 2 kHz from second 2 to 3."""
    wave = 1e-3 * np.random.default_rng(0).standard_normal(5 * 16_000)
    seconds = np.arange(len(wave)) / 16_000
    wave += 0.3 * np.sin(2 * np.pi * 2000.0 * seconds) * ((seconds >= 2.0) & (seconds < 3.0))
    return LogMel().frames(wave.astype(np.float32))


def rectangles(figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def test_the_box_of_a_tone_encloses_the_loudest_pixels(logmel):
    figure = spectrogram_figure(logmel, [TONE])
    (box,) = rectangles(figure)
    image = figure.axes[0].images[0]
    left, right, bottom, top = image.get_extent()
    pixels = np.asarray(image.get_array())  # (bins, frames)
    rows, columns = np.nonzero(pixels > pixels.max() - 6.0)
    times = left + (columns + 0.5) * (right - left) / pixels.shape[1]
    bins = bottom + (rows + 0.5) * (top - bottom) / pixels.shape[0]
    assert times.min() == pytest.approx(2.0, abs=0.02) and times.max() == pytest.approx(3.0, abs=0.02)
    assert box.get_x() == 2.0 and box.get_width() == pytest.approx(1.0)
    assert box.get_y() < bins.min() <= bins.max() < box.get_y() + box.get_height()


def test_truth_is_green_and_solid_and_detections_are_blue_and_dashed(logmel):
    figure = spectrogram_figure(logmel, [TONE], [FigureBox(2.1, 3.1, 1700.0, 2300.0, score=0.5)])
    truth, detection = rectangles(figure)
    to_rgb = lambda colour: tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))  # noqa: E731
    assert truth.get_edgecolor()[:3] == pytest.approx(to_rgb(TRUTH_COLOUR))
    assert detection.get_edgecolor()[:3] == pytest.approx(to_rgb(DETECTION_COLOUR))
    assert truth.get_linestyle() == "solid" or truth.get_linestyle() == "-"
    assert detection.get_linestyle() not in ("solid", "-")
    assert {text.get_text() for text in figure.axes[0].texts} == {"tone", "0.50"}


def test_boxes_are_cut_at_the_picture_and_left_out_beyond_it(logmel):
    boxes = [
        FigureBox(-1.0, 1.0, 100.0, 500.0),
        FigureBox(7.0, 8.0, 100.0, 500.0),
        FigureBox(1.0, 2.0, 9000.0, 12000.0),
        FigureBox(4.0, 4.5, None, None),
    ]
    cut, whole_band = rectangles(spectrogram_figure(logmel, boxes))
    assert (cut.get_x(), cut.get_width()) == (0.0, 1.0)
    assert whole_band.get_y() == pytest.approx(float(hertz_to_bin(20.0)))
    assert whole_band.get_y() + whole_band.get_height() == pytest.approx(float(hertz_to_bin(8000.0)))


def test_the_time_axis_begins_at_the_excerpt(logmel):
    figure = spectrogram_figure(
        logmel, [FigureBox(102.0, 103.0, 1800.0, 2200.0)], start_s=100.0, title="x.wav"
    )
    axes = figure.axes[0]
    assert axes.get_xlim() == pytest.approx((100.0, 100.0 + len(logmel) * 0.01))
    assert axes.get_xlabel() == "seconds" and "kHz" in axes.get_ylabel()
    assert axes.get_title(loc="left") == "x.wav"
    assert len(rectangles(figure)) == 1


def test_equal_figures_give_equal_png_files(logmel):
    first, second = (png_bytes(spectrogram_figure(logmel, [TONE], title="x")) for _ in range(2))
    assert first == second
    assert imread(io.BytesIO(first), format="png").shape[0] > 300
