"""Charts are well-formed SVG with escaped text, and their geometry is where arithmetic puts it."""

import xml.etree.ElementTree as ET

import pytest

from mast_ray.reporting.report.charts import (
    Series,
    histogram,
    legend,
    line_chart,
    nice_ticks,
    number,
    parallel_coordinates,
)


def parsed(markup: str) -> ET.Element:
    return ET.fromstring(f"<div>{markup}</div>")


def test_ticks_are_round_numbers_inside_the_range():
    assert nice_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0.05, 0.83, 4) == [0.2, 0.4, 0.6, 0.8]
    assert nice_ticks(0, 3, 6, smallest=1.0) == [0, 1, 2, 3]
    assert nice_ticks(2, 2) == [2]


def test_numbers_are_short():
    assert [number(v) for v in (0, 0.25, 1234.5, 12_345_678, 0.00001)] == [
        "0",
        "0.25",
        "1,234",
        "1.2e+07",
        "1e-05",
    ]


def test_a_line_runs_from_corner_to_corner_of_the_plot():
    chart = parsed(line_chart("t", [Series("a", (0.0, 1.0), (0.0, 1.0))], "x", "y", (0, 1), (0, 1)))
    assert chart.find(".//polyline").get("points") == "52.0,258.0 446.0,12.0"


def test_points_that_are_no_numbers_are_left_out():
    chart = parsed(
        line_chart("t", [Series("a", (0.0, 0.5, 1.0), (0.0, float("nan"), 1.0))], "x", "y", (0, 1), (0, 1))
    )
    assert len(chart.find(".//polyline").get("points").split()) == 2


def test_hostile_names_stay_text():
    evil = '</text><script>alert(1)</script>"'
    pictures = (
        line_chart(
            evil, [Series(evil, (0, 1), (0, 1)), Series("b", (0, 1), (1, 0))], evil, evil, drawn="both"
        ),
        histogram(evil, (0, 0.5, 1), (1, 2), evil),
        parallel_coordinates(evil, (evil, "F1"), ((evil, 0.5), ("b", 0.6)), "F1"),
        legend([evil, evil]),
    )
    for picture in pictures:
        assert not [e for e in parsed(picture).iter() if e.tag == "script"]
        assert evil in "".join(parsed(picture).itertext())


def test_bars_are_as_high_as_their_counts():
    bars = parsed(histogram("t", (0.0, 0.5, 1.0), (1, 4), "score")).findall(".//rect")
    heights = [float(bar.get("height")) for bar in bars]
    assert heights[1] == pytest.approx(4 * heights[0], rel=1e-3)
    assert [bar.get("data-low") for bar in bars] == ["0", "0.5"]


def test_the_best_trial_is_drawn_last_and_thick():
    rows = ((0.1, "fixed", 0.5), (0.3, "tuned", 0.9), (0.2, "fixed", 0.7))
    lines = parsed(parallel_coordinates("t", ("q", "policy", "F1"), rows, "F1")).findall(".//polyline")
    assert "best" in lines[-1].get("class") and "0.9" in lines[-1].find("title").text
    assert sum("best" in line.get("class") for line in lines) == 1


def test_a_trial_without_a_value_leaves_out_that_axis():
    lines = parsed(parallel_coordinates("t", ("a", "F1"), ((None, 0.5), (2.0, 0.6)), "F1")).findall(
        ".//polyline"
    )
    assert sorted(len(line.get("points").split()) for line in lines) == [1, 2]
