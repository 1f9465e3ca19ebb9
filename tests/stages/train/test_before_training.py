"""What a training will not learn is said before it begins: boxes between the points of the pyramid."""

from types import SimpleNamespace

import numpy as np
import pytest

from mast_ray.config.recipes import tiny
from mast_ray.stages.train.box_checks import warn_of_unlearned_boxes
from mast_ray.tables.reading.chunk_sets import BoxTable
from mast_ray.training.assembly import detection


@pytest.fixture(scope="module")
def objective():
    return detection(tiny(), tiny().detector)


def reader_of(corners):
    rows = np.arange(len(corners))
    boxes = BoxTable(
        np.append(rows, len(rows)), np.array(corners, np.float32).reshape(-1, 4), np.zeros(len(rows), bool),
        np.zeros(len(rows), bool), rows,
        np.ones(len(rows), np.float32),
    )  # fmt: skip
    return SimpleNamespace(boxes=boxes)


@pytest.mark.parametrize(("num_narrow", "is_said"), [(1, True), (0, False)])
def test_boxes_that_no_point_learns_are_said_to_be_background(objective, caplog, num_narrow, is_said):
    """One bin high, the narrow one lies between the points at bins 30 and 34."""
    corners = [[100.0, 40, 140, 60]] * (10 - num_narrow) + [[100.0, 31, 140, 32]] * num_narrow
    with caplog.at_level("WARNING", logger="mast.training"):
        warn_of_unlearned_boxes(objective, reader_of(corners))
    assert ("10 % of the boxes" in caplog.text) == is_said
    assert ("every 8 frames and 4 bins" in caplog.text) == is_said


def test_nothing_is_said_without_boxes(objective, caplog):
    warn_of_unlearned_boxes(objective, reader_of([]))
    assert not caplog.text
