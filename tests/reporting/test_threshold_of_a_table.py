"""From which score on detections are read when nobody says: told aloud, whatever it is."""

import json

import pytest

from mast_ray.reporting.detection_tables import chosen_threshold


@pytest.mark.parametrize(
    ("counts", "wanted", "threshold", "said"),
    [
        (
            {"model_threshold": 0.52394488},
            None,
            0.52394488,
            "scores of at least 0.5239, the model's own threshold",
        ),
        ({"model_threshold": None}, None, None, "all scores: the model has no threshold of its own"),
        ({"model_threshold": None}, 0.4, 0.4, ""),
        ({}, None, None, ""),  # another program's
    ],
)
def test_the_threshold_of_a_table_is_the_models_and_its_absence_is_told(
    tmp_path, capsys, counts, wanted, threshold, said
):
    (tmp_path / "manifest.json").write_text(json.dumps({"stage": "detect", "counts": counts}))
    assert chosen_threshold(wanted, str(tmp_path)) == threshold
    assert capsys.readouterr().out.startswith(said) if said else not capsys.readouterr().out
