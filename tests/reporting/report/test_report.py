"""One file, closed to the world: every text is text, nothing is fetched, and any
subset of sections is a valid page.
"""

import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from whole_report import example, whole_report

from mast_ray.reporting.clips import clip_uris
from mast_ray.reporting.report.contents import Box, Interval, ReportData
from mast_ray.reporting.report.gallery import MARKUP_BYTES, GallerySettings
from mast_ray.reporting.report.page import format_cell, place_box, render_report, report_file, second_ticks
from mast_ray.spectrogram.logmel import LogMel

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "</title><script>alert(3)</script>",
    "</style><script>alert(4)</script>",
    "<img src=x onerror=alert(5)>",
    "<svg onload=alert(6)>",
    '"><script>alert(7)</script>',
    "'><script>alert(8)</script>",
    '" onmouseover="alert(9)',
    "' onfocus='alert(10)' autofocus='",
    "javascript:alert(11)",
    "<iframe src='http://example.org/'></iframe>",
    "<link rel=stylesheet href=http://example.org/x.css>",
    "<a href='javascript:alert(14)'>x</a>",
    "{{ 7 * 7 }}",
    "{% for x in y %}",
    "${alert(17)}",
    "`${alert(18)}`",
    "<!-- comment",
    "-->",
    "]]><script>alert(21)</script>",
    "&lt;script&gt;alert(22)&lt;/script&gt;",
    "\\u003cscript\\u003e",
    "<math><mtext></style><img src=x onerror=alert(24)>",
    "<base href='http://example.org/'>\u202egnp.exe",
]
VOID = {
    "meta",
    "link",
    "img",
    "input",
    "br",
    "path",
    "line",
    "rect",
    "circle",
    "polyline",
    "polygon",
    "fefuncr",
    "fefuncg",
    "fefuncb",
}


class Page(HTMLParser):
    """Tags, their attributes, and visible text of a page; raises when tags do not close."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "input", "br"}:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_there_are_twenty_five_hostile_strings():
    assert len(set(HOSTILE)) == 25


@pytest.mark.parametrize("evil", HOSTILE)
def test_a_hostile_string_in_every_text_field_appears_as_text(evil):
    harmless = Page(render_report(whole_report("harmless")))
    page = Page(render_report(whole_report(evil)))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in harmless.tags]  # not one element more
    assert [sorted(a) for _, a in page.tags] == [sorted(a) for _, a in harmless.tags]  # nor an attribute
    assert page.text.count(evil) >= 40


def test_every_part_may_be_missing():
    whole = whole_report("x")
    empty = ReportData("only a title")
    assert "only a title" in Page(render_report(empty)).text
    for field in fields(ReportData):
        if field.name != "title":
            Page(render_report(replace(whole, **{field.name: getattr(empty, field.name)})))
            Page(render_report(replace(empty, **{field.name: getattr(whole, field.name)})))


def test_the_policy_lets_only_our_own_script_run_and_nothing_load():
    text = render_report(whole_report("x"))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = policy.replace("&#39;", "'")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == rules["media-src"] == "data:"
    assert re.fullmatch(r"'sha256-[\w+/=]+'", rules["script-src"]) and re.fullmatch(
        r"'sha256-[\w+/=]+'", rules["style-src"]
    )
    assert "unsafe" not in policy


def test_nothing_in_the_page_points_outside():
    page = Page(render_report(whole_report("x")))
    for tag, attributes in page.tags:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("data:", "#")), f"{tag} {name}={value}"


def test_every_picture_says_what_it_shows():
    page = Page(render_report(whole_report("x")))
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    text = render_report(whole_report("x"))
    charts = re.findall(r'<svg class="chart[^>]*role="img"><title>([^<]+)</title>', text)
    assert len(charts) == text.count('<svg class="chart') >= 10


def test_two_hundred_examples_fit_into_ten_megabytes():
    rng = np.random.default_rng(0)
    # Noise is the worst there is for both encoders.
    samples = rng.normal(0, 0.1, int(5.12 * 16_000)).astype(np.float32)
    settings = GallerySettings()
    uris = clip_uris(samples, LogMel(), settings.max_bytes // settings.num_examples - MARKUP_BYTES)
    one = example("Danum/Danum_20240506_053000.wav", *uris)
    data = replace(whole_report("x"), examples=(one,) * 200)
    assert len(report_file(data)) < 10_000_000


def test_cells_are_short_and_missing_values_are_dashes():
    assert format_cell(0.51234) == "0.512" and format_cell(12) == "12" and format_cell(123456) == "123,456"
    assert format_cell(None) == format_cell(float("nan")) == format_cell(Interval(None)) == "–"
    assert str(format_cell(Interval(0.5, 0.25, 0.75))) == "0.500<small>0.250 – 0.750</small>"
    assert format_cell(Interval(0.5, None, None)) == "0.500"


def test_a_box_lies_in_percent_of_its_picture():
    shown = example("x")
    whole = Box("truth", 0.0, 5.0, 0.0, 8000.0)
    assert place_box(shown, whole) == {"x": "0.00%", "y": "0.00%", "width": "100.00%", "height": "100.00%"}
    half = place_box(shown, Box("truth", 2.5, 7.0, 20.0, 8000.0))
    assert (half["x"], half["width"]) == ("50.00%", "50.00%")


def test_seconds_of_the_recording_are_on_the_axis():
    late = replace(example("x"), window_begin_s=61.5, window_end_s=66.5)
    assert second_ticks(late) == [
        ("10.00%", "62"),
        ("30.00%", "63"),
        ("50.00%", "64"),
        ("70.00%", "65"),
        ("90.00%", "66"),
    ]


def test_names_that_are_no_unicode_are_written_too():
    assert "broken ? name" in report_file(ReportData("broken \udcff name")).decode()
