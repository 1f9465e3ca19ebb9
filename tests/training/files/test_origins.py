"""What weights go back to: read from a card, each once, in words, with the licences that come with it."""

from dataclasses import asdict

import pytest

from mast_ray.training.files.origins import (
    Origin,
    licences_of,
    origins_text,
    parse_origins,
    short_name,
    together,
)

SHIPPED = Origin("start", "shipped:tiny", "a" * 64, "CC BY-NC-SA 4.0")
RUN = Origin("start", "run/detector", "b" * 64)


def test_origins_survive_the_round_trip_and_an_old_card_has_none():
    assert parse_origins([asdict(RUN), asdict(SHIPPED)]) == (RUN, SHIPPED)
    assert parse_origins([]) == () and parse_origins(None) is None


@pytest.mark.parametrize(
    "odd", ["text", [1], [{"how": "start"}], [{"how": "luck", "name": "x"}], [{"how": "start", "name": 3}]]
)
def test_what_is_no_list_of_origins_is_refused(odd):
    with pytest.raises((TypeError, ValueError)):
        parse_origins(odd)


def test_an_origin_stands_once_where_it_is_nearest():
    """The teacher of a student that goes on from its weights is named as what it began with; without weights a name tells."""
    teacher = Origin("teacher", "elsewhere/detector", RUN.weights_sha256)
    unknown = Origin("start", "not recorded")
    assert together([RUN, teacher, unknown, SHIPPED, unknown]) == (RUN, unknown, SHIPPED)


def test_a_model_is_named_without_where_it_lay():
    assert short_name("/home/ann/secret/run/self_trained/model/") == "self_trained/model"
    assert short_name("s3://bucket/encoder") == "bucket/encoder" and short_name("model") == "model"


def test_origins_in_a_line():
    assert (
        origins_text((RUN, Origin("teacher", "a/b"), SHIPPED))
        == "began with run/detector, taught by a/b, began with shipped:tiny"
    )
    assert origins_text(()) == "began with nothing"
    assert origins_text(None) == "what it began with is not recorded"


def test_only_what_states_a_licence_is_listed():
    assert licences_of("own", "", (RUN, SHIPPED)) == {"shipped:tiny": "CC BY-NC-SA 4.0"}
    assert licences_of("own", "CC BY 4.0", None) == {"own": "CC BY 4.0"}
