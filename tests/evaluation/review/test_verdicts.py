"""Sheets of verdicts as people fill them in."""

import pytest

from mast_ray.config.errors import DataError
from mast_ray.evaluation.review.verdicts import read_verdicts

IDS = ("00000000000000aa", "00000000000000ab")


def sheet_of(folder, *rows):
    lines = ["detection_id,path,score,sheet,verdict", *(",".join(row) for row in rows)]
    (folder / "review.csv").write_text("\n".join(lines) + "\n")
    return folder / "review.csv"


def test_a_detection_that_is_judged_twice_is_refused_by_its_line(tmp_path):
    """The sheets of two reviewers put together: sixty of sixty judged twice had limits of 0.003 and 1."""
    one, other = ((name, "a.wav", "0.5", "seed 0", "y") for name in IDS)
    place = sheet_of(tmp_path, one, other, (*one[:4], "n"))
    with pytest.raises(DataError, match=rf"line 4: detection {IDS[0]} is judged a second time"):
        read_verdicts(place)


def test_a_row_that_was_left_open_and_judged_below_counts_once(tmp_path):
    row = (IDS[0], "a.wav", "0.5", "seed 0")
    found = read_verdicts(sheet_of(tmp_path, (*row, ""), (*row, "y")))
    assert found.is_right.tolist() == [True] and found.num_undecided == 1


def test_ids_that_a_spreadsheet_took_for_numbers_are_not_told_apart(tmp_path):
    rows = [("1234567890120000", "a.wav", "0.5", "seed 0", verdict) for verdict in "yn"]
    assert read_verdicts(sheet_of(tmp_path, *rows)).is_right.tolist() == [True, False]
