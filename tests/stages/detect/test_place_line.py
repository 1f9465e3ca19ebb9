"""What `mast detect` says last: where the table is, and from which score on its rows are calls."""

import pytest

from mast_ray.stages.detect.detect import place_line


@pytest.mark.parametrize(
    ("stored_from", "model_threshold", "said"),
    [
        (0.02, 0.52394, "; calls are those of at least 0.5239, the model's own threshold"),
        (0.6, 0.52394, ""),  # --threshold 0.6: all that is stored is one
        (0.02, None, ""),
    ],
)
def test_rows_below_the_models_threshold_are_told_to_be_no_calls(stored_from, model_threshold, said):
    assert place_line("/d", stored_from, model_threshold) == f"detections: /d{said}"
