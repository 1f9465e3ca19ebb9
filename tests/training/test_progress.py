"""Pace and progress line."""

import io

import pytest

from mast_ray.training.progress import Pace, ProgressLine, Stopwatch, duration_text, progress_text


def test_a_look_gives_rate_waiting_share_mfu_and_time_left_since_the_last_one():
    now = [100.0]
    watch = Stopwatch(1000, flops_per_sample=2e9, peak_flops=1e12, now=lambda: now[0])
    watch.restart(0)
    now[0] = 102.0
    watch.waited(0.5)
    pace = watch.look(100)
    assert (pace.chunks_per_s, pace.wait_share, pace.left_s) == (50.0, 0.25, 18.0)
    assert pace.model_flops_share == pytest.approx(50 * 2e9 / 1e12)
    now[0] = 103.0
    assert watch.look(300) == Pace(200.0, 0.0, 0.4, 3.5)


def test_what_is_not_training_is_not_counted():
    now = [0.0]
    watch = Stopwatch(1000, now=lambda: now[0])
    watch.restart(0)
    now[0] = 50.0  # a validation
    watch.restart(0)
    now[0] = 51.0
    assert watch.look(10).chunks_per_s == 10.0


def test_the_line_is_quiet_when_nobody_watches():
    now, stream = [0.0], io.StringIO()
    line = ProgressLine(stream, now=lambda: now[0])
    for second in range(130):
        now[0] = float(second)
        line.show(f"at {second}")
    line.show("end", final=True)
    assert stream.getvalue().splitlines() == ["at 0", "at 60", "at 120", "end"]


def test_the_text_says_what_one_wants_to_know():
    text = progress_text(10, 100, 0.5, 1.25, Pace(1234.4, 0.012, 0.31, 3725))
    assert text == "step 10/100 (epoch 0.5): loss 1.2500, 1,234 chunks/s, waiting 1.2%, MFU 31%, 1:02:05 left"
    assert duration_text(float("inf")) == "?"
