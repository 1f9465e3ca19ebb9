"""Markdown, CSV and LaTeX tables of methods."""

import csv
import io
import math
from dataclasses import replace

from mast_ray.reporting.paper_tables import (
    Figure,
    Gain,
    MethodRow,
    PaperTable,
    csv_table,
    latex_table,
    markdown_gains,
    markdown_table,
)

BEST = MethodRow("mast", "MAST", "mast", {"f1": Figure(0.7421, 0.7, 0.78, "best")}, 3, 2640)
NEAR = MethodRow(
    "no_contrastive",
    "MAST − contrastive",
    "pipeline",
    {"f1": Figure(0.73, 0.69, 0.77, "within_noise")},
    3,
    2640,
)
FAR = MethodRow("fcos", "FCOS", "baseline", {"f1": Figure(0.2, math.nan, math.nan, "behind")}, 1, 0)
TABLE = PaperTable("in_domain", "In-domain detection", (FAR, BEST, NEAR), 12, 345)


def test_markdown_shows_estimates_intervals_standings_and_n():
    lines = markdown_table(TABLE).splitlines()
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in lines
        if line.startswith("| ")
    }
    f1 = rows["Method"].index("F1")
    assert rows["MAST"][f1] == "**0.742** [0.700, 0.780]"
    assert rows["MAST − contrastive"][f1] == "0.730† [0.690, 0.770]"
    assert rows["FCOS"][f1] == "0.200"
    assert rows["FCOS"][0] == "–"  # precision is not known
    assert rows["MAST"][-2:] == ["3", "2,640"] and rows["FCOS"][-2:] == ["1", "–"]
    assert "n = 345 calls in 12 recordings" in lines[-1]


def test_csv_has_a_row_per_method_and_table_with_limits_in_columns_of_their_own():
    other = replace(TABLE, key="temporal", rows=(BEST,))
    rows = list(csv.DictReader(io.StringIO(csv_table([TABLE, other]).decode())))
    assert [(r["table"], r["method"]) for r in rows] == [
        ("in_domain", "fcos"), ("in_domain", "mast"), ("in_domain", "no_contrastive"), ("temporal", "mast"),
    ]  # fmt: skip
    assert (rows[1]["f1"], rows[1]["f1_low"], rows[1]["f1_high"], rows[1]["f1_standing"]) == (
        "0.7421",
        "0.7",
        "0.78",
        "best",
    )
    assert (rows[0]["f1_low"], rows[0]["precision"], rows[0]["precision_standing"]) == ("", "", "")
    assert rows[3]["num_calls"] == "345"


def test_latex_rows_have_as_many_cells_as_the_tabular_has_columns():
    text = latex_table(TABLE)
    columns = text.split(r"\begin{tabular}{@{}")[1].split("@{}}")[0]
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") + 1 for line in rows} == {len(columns)}
    assert r"\textbf{0.742} {\scriptsize [0.700, 0.780]}" in text
    assert r"0.730$^\dagger$" in text
    assert text.count(r"\midrule") == 1 + 2  # under the head, and between three groups


def test_latex_and_markdown_escape_what_would_break_their_tables():
    row = replace(BEST, title=r"A&B_50% {x} $y$ #1 \z | <b>")
    table = replace(TABLE, rows=(row,))
    latex = next(line for line in latex_table(table).splitlines() if line.startswith("A"))
    assert latex.startswith(r"A\&B\_50\% \{x\} \$y\$ \#1 \textbackslash{}z | <b> & ")
    markdown = next(line for line in markdown_table(table).splitlines() if line.startswith("| A"))
    assert r"\\z \| &lt;b>" in markdown


def test_gains_say_better_worse_or_within_noise():
    gains = [
        Gain("temporal", "MAST + ST", "f1", Figure(0.11, 0.04, 0.19), False),
        Gain("temporal", "FCOS", "f1", Figure(-0.2, -0.3, -0.1), False),
        Gain("temporal", "union", "ap", Figure(0.01, -0.02, 0.05), True),
    ]
    lines = markdown_gains(gains, "MAST").splitlines()[-3:]
    assert lines[0] == "| temporal | MAST + ST | F1 | +0.110 [+0.040, +0.190] | better |"
    assert lines[1].endswith("| -0.200 [-0.300, -0.100] | worse |")
    assert lines[2].endswith("| within noise |")
