"""Before a training begins: what it will not learn is said (boxes between the points of the pyramid), and what makes it
another run than the one that a folder holds.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from small_archive import make_prepared

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import paper, tiny
from mast_ray.stages.runner import HERE, Here
from mast_ray.stages.train.box_checks import warn_of_random_encoder, warn_of_unlearned_boxes
from mast_ray.stages.train.summary import TrainSummary, result_text
from mast_ray.stages.train.train import run_train_detector
from mast_ray.stages.train.work import DetectorTask, identity_of
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import BoxTable
from mast_ray.training.assembly import detection


@pytest.fixture(scope="module")
def objective():
    return detection(tiny(), tiny().detector)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return open_prepared(str(make_prepared(tmp_path_factory.mktemp("small"), 4, 11)))


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


@pytest.mark.parametrize(
    ("knob", "value", "differs"),
    [
        ("evaluate.iou", 0.3, True),
        ("evaluate.nms_overlap", 0.7, True),
        ("evaluate.post", "none", True),
        ("evaluate.bootstrap", 50, False),
        ("evaluate.batch_size", 8, False),
        ("detector.validate_every_epochs", 2, False),
    ],
)
def test_weights_that_are_judged_otherwise_are_of_another_run(archive, knob, value, differs):
    """Figures at an overlap of 0.3 and of 0.5 cannot be compared, so the best of both is not the best."""
    usual, other = (
        identity_of(DetectorTask(config, "", ""), archive)
        for config in (tiny(), apply_overrides(tiny(), {knob: value}))
    )
    assert (usual != other) == differs
    assert not [name for name in usual if name.startswith("evaluate.")]  # runs that began before go on


def test_a_run_by_a_recipe_that_judges_in_its_own_way_goes_on(archive):
    assert "evaluate.post" not in identity_of(DetectorTask(paper(), "", ""), archive)


def test_a_training_that_nothing_chose_by_names_no_best_step():
    told = result_text(TrainSummary(2, 8, 11, 0, -1), "out")
    assert told == "done: 2 steps over 11 chunks; the last weights, as nothing chose\nout"
    assert "best at step 2: f1 0.5" in result_text(TrainSummary(2, 8, 11, 0, 2, {"f1": 0.5}), "out")


@pytest.mark.parametrize(
    ("knobs", "is_said"),
    [
        ({"detector.unfrozen_blocks": 1}, True),
        ({"detector.unfrozen_blocks": 99}, False),
        (
            {
                "detector.unfrozen_blocks": 1,
                "detector.unfreeze_every_epochs": 1,
                "detector.unfreeze_blocks": 1,
            },
            False,
        ),
        ({"detector.unfrozen_blocks": 1, "model.name": "vit_scratch"}, False),
        ({"detector.unfrozen_blocks": 1, "model.name": "resnet_fpn"}, False),
    ],
)
def test_an_encoder_that_stays_as_it_was_drawn_is_said_with_what_to_do(caplog, knobs, is_said):
    config = apply_overrides(tiny(), knobs)
    with caplog.at_level("WARNING", logger="mast.training"):
        warn_of_random_encoder(detection(config, config.detector), config.detector, config.model, "detector")
    assert ("stay as they were drawn (detector.unfrozen_blocks=1)" in caplog.text) == is_said
    assert ("--set detector.unfrozen_blocks=99" in caplog.text) == is_said


class Refusing(Here):
    """A worker that is given what it cannot train on."""

    def train(self, loop, stage, *given):
        assert stage.stat("config.yaml") is not None
        raise ConfigError("its boxes are of another planet")


def test_a_run_that_is_refused_by_its_workers_leaves_no_record_to_go_on_from(archive, tmp_path):
    """The next command's feed would be that of the refused one."""
    with pytest.raises(ConfigError, match="planet"):
        run_train_detector(tiny(), archive.storage.url, str(tmp_path / "out"), runner=Refusing())
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_file_of_public_weights_leaves_nothing_behind(archive, tmp_path):
    (tmp_path / "cut.pth").write_bytes(b"half of it")
    config = apply_overrides(tiny(), {"spectrogram.divisor": 2.0})
    places, encoder = (archive.storage.url, str(tmp_path / "out")), str(tmp_path / "cut.pth")
    with pytest.raises(DataError, match="not a plain PyTorch checkpoint"):
        run_train_detector(config, *places, init_encoder=encoder, runner=HERE)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_training_was_writing_is_gone_when_it_goes_on(archive, tmp_path):
    half = tmp_path / "out" / "checkpoints" / ".tmp-0123456789abcdef"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half a checkpoint")
    with pytest.raises(ConfigError, match="planet"):
        run_train_detector(tiny(), archive.storage.url, str(tmp_path / "out"), runner=Refusing())
    assert not half.exists()
