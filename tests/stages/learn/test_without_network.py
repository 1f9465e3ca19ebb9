"""Corrections of a run whose boxes come from a detector without a network: `mast run` delivers pieces where they are better."""

import shutil
from dataclasses import replace

import pytest
from small_archive import make_prepared, small_config

from mast_ray.reporting.detection_tables import read_recordings
from mast_ray.stages.detect.detect import DetectInputs, detect
from mast_ray.stages.learn.learn import adapt, compare, compared_text
from mast_ray.stages.learn.naming import learned_names
from mast_ray.stages.learn.places import find_run
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.files.model_files import read_card, write_card
from mast_ray.training.files.shipped import shipped_model


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def pieces(prepared, tmp_path_factory):
    """What a round makes of a run of `shipped:energy`."""
    out, archive = tmp_path_factory.mktemp("round") / "adapted", open_prepared(str(prepared))
    return adapt(small_config(), str(shipped_model("energy")), archive, str(out), 5.0, HERE)


def test_what_stands_out_is_put_together_anew_as_the_corrections_say(pieces):
    card = read_card(pieces)
    assert card.model["name"] == "pieces" and card.score_threshold is not None


def test_boxes_without_embeddings_get_no_names_and_the_round_goes_on(prepared, pieces):
    kept = learned_names(small_config(), pieces, open_storage(pieces), open_prepared(str(prepared)), True)
    assert kept.what == "none" and "has no embeddings" in kept.why


def test_a_better_threshold_alone_does_not_pass_for_a_better_detector(prepared, pieces, tmp_path):
    """The adapted one has a threshold that the held-out corrections chose; so has the present one where both are compared."""
    shutil.copytree(pieces, tmp_path / "deaf")
    deaf, archive = open_storage(tmp_path / "deaf"), open_prepared(str(prepared))
    write_card(deaf, replace(read_card(pieces), score_threshold=0.9999))
    config = small_config(**{"evaluate.bootstrap": 20})
    found = compare(config, deaf.url, pieces, archive, open_storage(tmp_path / "scores"), HERE)
    assert found.before.estimate < found.after.estimate <= found.retuned.estimate
    assert found.kept == "retuned" and found.threshold < 0.9999 and found.gain.estimate <= 0
    assert f"stays, with the threshold {found.threshold:.3g}" in compared_text(found)


@pytest.mark.parametrize("inside", [True, False])
def test_the_model_of_a_run_without_a_network_is_found(prepared, pieces, tmp_path, inside):
    model = tmp_path / "run" / "pieces" if inside else shipped_model("energy")
    if inside:
        shutil.copytree(pieces, model)
    detections = tmp_path / "run" / "detections"
    assert (
        detect(
            DetectInputs(str(model), str(prepared.parent / "archive"), str(detections)),
            small_config(),
            runner=HERE,
        )
        == 0
    )
    assert len(read_recordings(str(detections))) == 8
    assert find_run(str(tmp_path / "run")).model == open_storage(model).url
