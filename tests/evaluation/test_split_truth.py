"""What is true in a split, and which split may choose between models."""

from tables_in_memory import prepared_in_memory

from mast_ray.evaluation.split_truth import selection_split

CALL = (10.0, 11.0, 1000.0, 2000.0)


def test_the_development_split_under_shift_chooses_where_somebody_labelled_a_call_in_it():
    splits = {"a": "train", "b": "val", "c": "ood_dev", "d": "site_ood"}
    assert selection_split(prepared_in_memory(splits, [("b", *CALL), ("c", *CALL)])) == "ood_dev"
    # a split in which nothing calls cannot tell a good model from a silent one
    assert selection_split(prepared_in_memory(splits, [("b", *CALL), ("d", *CALL)])) == "val"


def test_validation_chooses_where_no_site_was_set_aside_for_it():
    assert selection_split(prepared_in_memory({"a": "train", "b": "val"}, [("b", *CALL)])) == "val"
