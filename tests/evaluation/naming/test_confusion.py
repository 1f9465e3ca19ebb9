"""Who was called what, counted by hand."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from mast_ray.evaluation.events import events_from_arrow
from mast_ray.evaluation.naming.confusion import (
    MISSED,
    NO_CALL,
    Confusion,
    confusion_csv,
    confusion_of,
    confusion_text,
)
from mast_ray.evaluation.scoring import breakdown_by, score_tables


def boxes(*rows):
    """(recording, begin_s, label, score) -> events of one second and one band."""
    columns = {
        "path": [row[0] for row in rows],
        "begin_s": [float(row[1]) for row in rows],
        "end_s": [row[1] + 1.0 for row in rows],
        "low_hz": [1000.0] * len(rows),
        "high_hz": [2000.0] * len(rows),
        "label": [row[2] for row in rows],
        "score": [row[3] if len(row) > 3 else 1.0 for row in rows],
    }
    return events_from_arrow(pa.table(columns))


TRUTH = boxes(("x", 0, "wren"), ("x", 5, "wren"), ("x", 10, "robin"), ("y", 0, "robin"), ("y", 5, "owl"))
FOUND = boxes(
    ("x", 0, "wren", 0.9),
    ("x", 5, "robin", 0.8),  # a wren called robin
    ("x", 10, "unknown", 0.7),
    ("y", 0, "robin", 0.9),
    ("y", 20, "robin", 0.6),  # nothing there
    ("y", 5, "owl", 0.2),  # below the threshold: missed
)


def test_every_call_and_every_detection_is_in_one_cell():
    one = confusion_of(score_tables(FOUND, TRUTH), "test", 0.5)
    assert one.truth == ("owl", "robin", "wren", NO_CALL)
    assert one.given == ("robin", "wren", "unknown", MISSED)
    assert one.counts.tolist() == [[0, 0, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert (one.num_right, one.num_found) == (2, 4)
    assert one.mistakes() == [(NO_CALL, "robin", 1), ("robin", "unknown", 1), ("wren", "robin", 1)]
    assert one.rows()[1] == {
        "split": "test",
        "label": "robin",
        "robin": 1,
        "wren": 0,
        "unknown": 1,
        MISSED: 0,
    }
    assert confusion_csv([one]).decode().splitlines()[1] == "test,owl,(missed),1"
    assert "2 of 4 found calls have their right name" in confusion_text(one)


def test_mistakes_are_listed_from_the_most_frequent_and_equals_by_name():
    counts = np.array([[5, 1, 2, 9], [3, 7, 0, 0], [3, 0, 0, 0]])  # 9 missed calls are no mistake of a name
    one = Confusion("test", ("a", "b", NO_CALL), ("a", "b", "unknown", MISSED), counts)
    assert one.mistakes() == [(NO_CALL, "a", 3), ("b", "a", 3), ("a", "unknown", 2), ("a", "b", 1)]
    assert (one.num_right, one.num_found) == (12, 18)


def test_a_wrong_name_is_a_false_alarm_of_one_species_and_a_miss_of_another():
    cells = {cell.name: cell for cell in breakdown_by(score_tables(FOUND, TRUTH), "label", 0.5, 50)}
    assert sorted(cells) == ["owl", "robin", "wren"]  # unknown is no species
    figures = {
        name: (cell.metrics.num_truth, cell.metrics.num_detections, cell.metrics.num_true_positives)
        for name, cell in cells.items()
    }
    assert figures == {"wren": (2, 1, 1), "robin": (2, 3, 1), "owl": (1, 0, 0)}
    assert cells["wren"].metrics.precision == 1.0 and cells["wren"].metrics.recall == 0.5
    assert cells["robin"].metrics.precision == 1 / 3 and np.isclose(cells["robin"].metrics.f1, 0.4)


def test_boxes_without_names_keep_their_recall_alone():
    nameless = score_tables(boxes(("x", 0, "call", 0.9), ("y", 0, "call", 0.9)), TRUTH)
    cells = {cell.name: cell.metrics for cell in breakdown_by(nameless, "label", 0.5, 50)}
    assert (cells["wren"].recall, cells["robin"].recall) == (0.5, 0.5)
    assert confusion_of(nameless, "test", 0.5) is None


@pytest.mark.parametrize(("given", "names"), [("unknown", 0), ("finch", 2)])
def test_a_split_in_which_no_name_is_right_has_no_recall_without_names(given, names):
    """One split of a table counted names, the next, where all boxes were called unknown, every box that lay on a call."""
    found = boxes(("x", 0, given, 0.9), ("y", 0, given, 0.9))
    named = replace(score_tables(found, TRUTH), are_named=True)
    cells = {cell.name: cell.metrics for cell in breakdown_by(named, "label", 0.5, 50)}
    assert {name: cells[name].recall for name in ("owl", "robin", "wren")} == {
        "owl": 0,
        "robin": 0,
        "wren": 0,
    }
    assert cells["finch"].num_detections == names if names else "finch" not in cells
    one = confusion_of(named, "test", 0.5)
    assert (one.num_right, one.num_found) == (0, 2)
