"""`mast advise-upsampling` on a small table."""

import json

import pytest

from mast_ray.verbs.advise_upsampling import extents_of, size_lines
from mast_ray.verbs.main import main

HEADER = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "calls.Table.1.selections.txt"
    rows = ["1\tSpectrogram 1\t1\t1.0\t2.0\t2000\t2400\n", "2\tSpectrogram 1\t1\t3.0\t5.5\t4000\t4300\n"]
    path.write_text(HEADER + "".join(rows))
    return path


def test_long_narrow_calls_ask_for_more_upsampling_in_frequency(table, tmp_path, capsys):
    out = tmp_path / "advice.json"
    assert main(["advise-upsampling", "--annotations", str(table), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "2 boxes" in text and "recommended" in text
    figures = json.loads(out.read_text())
    assert figures["num_boxes"] == 2 and figures["median_frames"] == 175.0
    best = figures["choices"][0]
    assert best["upsampling_frequency"] > best["upsampling_time"]
    assert len(figures["choices"]) == 4


def test_a_budget_that_is_no_power_of_two_is_refused(table, capsys):
    assert main(["advise-upsampling", "--annotations", str(table), "--budget", "6"]) == 2
    assert "power of two" in capsys.readouterr().err


def test_boxes_smaller_than_the_detectors_cells_are_warned_of_and_large_ones_are_not():
    short = size_lines(extents_of([0.0, 1.0], [0.05, 1.05], [2000.0, 2000.0], [2200.0, 2200.0]))
    assert len(short) == 3 and short[0].startswith("median box 0.0") and "0.08 s x 4 bins" in short[1]
    large = size_lines(extents_of([0.0, 0.5], [3.0, 1.0], [1000.0, None], [6000.0, None]))
    assert len(large) == 1 and large[0].startswith("median box 3.0")
