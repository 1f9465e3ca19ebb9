"""Names of boxes: worked by hand, against an oracle, and on clouds of points whose labels are known."""

import math

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from mast_ray.config.errors import DataError
from mast_ray.evaluation.naming.fitting import Way, fit_names, fit_way, limit_for_precision
from mast_ray.evaluation.naming.names import UNKNOWN, Examples, Names, box_numbers
from mast_ray.evaluation.naming.shares import share_interval

BOX = np.array([[0.0, 10.0, 50.0, 30.0]])


def two_names(kind="prototype", **knobs) -> Names:
    """Label a lies along the first axis, b along the second."""
    given = {
        "labels": ("a", "b"), "kind": kind, "uses_shape": False, "mean": np.zeros(2), "scale": np.ones(2),
        "weights": 2.0 * np.eye(2), "bias": np.zeros(2), "prototypes": np.eye(2),
        "confidence": np.array([-1.0, 0.5, 1.0]), "unknown_below": 0.5,
    }  # fmt: skip
    return Names(**(given | knobs))


def clouds(num_labels=5, per_label=24, apart=2.0, seed=0, numbers=12, recordings=6) -> Examples:
    """Boxes of every label around its own point; every recording has some of each."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(num_labels, numbers)) * apart
    code = np.repeat(np.arange(num_labels), per_label)
    points = (centre[code] + rng.normal(size=(len(code), numbers))).astype(np.float32)
    recording = np.array([f"r{number % recordings}" for number in range(len(code))], object)
    return Examples(
        points, np.repeat(BOX, len(code), 0), np.array([f"s{n}" for n in code], object), recording
    )


def test_evidence_is_the_log_odds_of_the_softmax_and_the_cosine_to_the_label():
    found = two_names().evidence([[3.0, 4.0]], BOX)  # of length one: 0.6, 0.8; logits 1.2, 1.6
    chance = math.exp(1.6) / (math.exp(1.2) + math.exp(1.6))
    assert found.label.tolist() == [1]
    assert found.log_odds[0] == pytest.approx(math.log(chance / (1 - chance)))
    assert found.similarity[0] == pytest.approx(0.8)


def test_a_name_below_the_confidence_is_unknown_and_keeps_its_chance():
    named = two_names().named([[3.0, 4.0], [0.0, 1.0]], BOX.repeat(2, 0))
    # log-odds of two labels are the difference of their logits: 0.4 and 2
    first, second = (1 / (1 + math.exp(-(-1 + 0.5 * odds + cosine))) for odds, cosine in ((0.4, 0.8), (2, 1)))
    assert named.confidence.tolist() == pytest.approx([first, second])
    assert two_names(unknown_below=0.6).named([[3.0, 4.0], [0.0, 1.0]], BOX.repeat(2, 0)).label == (
        UNKNOWN,
        "b",
    )
    assert two_names(unknown_below=0.6).named([[3.0, 4.0]], BOX).nearest == ("b",)


def test_shape_is_length_height_and_band_beside_the_embedding():
    assert box_numbers([[7.0]], BOX, True)[0].tolist() == pytest.approx(
        [7.0, math.log(50), math.log(20), 10, 30]
    )
    assert box_numbers([[7.0]], BOX, False).tolist() == [[7.0]]


def test_linear_names_are_those_of_a_discriminant_with_equal_chances():
    examples = clouds(num_labels=4, per_label=300, apart=0.7, numbers=4)  # enough that shrinking does little
    linear = fit_way(examples, Way("linear", False))
    standard = (examples.embedding - examples.embedding.mean(0)) / examples.embedding.std(0)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(4, 0.25))
    wanted = oracle.fit(standard, examples.label.astype(str)).predict(standard)
    own = np.array(linear.labels)[linear.evidence(examples.embedding, examples.boxes).label]
    assert (own == wanted).mean() > 0.97


def test_a_label_with_one_box_is_named_and_adds_no_spread():
    examples = clouds(num_labels=3, apart=3.0)
    few = examples.take(np.arange(49))  # two labels whole, one box of the third
    names = fit_way(few, Way("linear", False))
    found = names.evidence(examples.embedding[48:], examples.boxes[48:])
    assert (found.label == 2).mean() > 0.8


def test_two_labels_have_a_line_each():
    examples = clouds(num_labels=2, apart=3.0)
    names = fit_names(examples, None).names
    named = names.named(examples.embedding, examples.boxes)
    assert np.mean([a == b for a, b in zip(named.nearest, examples.label, strict=True)]) > 0.98


def test_known_labels_are_named_and_points_far_from_all_of_them_are_unknown():
    examples = clouds(num_labels=8, apart=2.5)
    found = fit_names(examples, None)
    assert found.accuracy.estimate > 0.95 and found.given.estimate > 0.85 and found.rejected.estimate > 0.8
    rng = np.random.default_rng(9)
    strangers = np.repeat(rng.normal(size=(6, 12)) * 2.5, 5, 0) + rng.normal(size=(30, 12))
    named = found.names.named(strangers, BOX.repeat(30, 0))
    assert np.mean([label == UNKNOWN for label in named.label]) > 0.6


def test_the_box_itself_is_used_where_the_embedding_says_nothing():
    rng = np.random.default_rng(0)
    code = np.repeat([0, 1, 2], 30)
    boxes = np.stack([np.zeros(90), 20.0 + 30 * code, np.full(90, 40.0), 30.0 + 30 * code], 1)
    label = np.array(["low", "middle", "high"], object)[code]
    groups = np.array([f"r{n % 5}" for n in range(90)], object)
    found = fit_names(Examples(rng.normal(size=(90, 6)).astype(np.float32), boxes, label, groups), None)
    assert found.names.uses_shape
    assert max(found.top_1.values()) > 0.95 and found.top_1["prototype"] < 0.6


def test_what_only_tells_recordings_apart_names_nothing():
    """Every recording has one label and its own mark: without folds by recording this would look perfect."""
    rng = np.random.default_rng(1)
    marks = rng.normal(size=(12, 10)) * 5
    recording = np.repeat(np.arange(12), 10)
    points = (marks[recording] + rng.normal(size=(120, 10)) * 0.1).astype(np.float32)
    label = np.array([f"s{n % 2}" for n in recording], object)
    groups = np.array([f"r{n}" for n in recording], object)
    found = fit_names(Examples(points, BOX.repeat(120, 0), label, groups), None)
    assert found.top_1["prototype"] < 0.8


def test_validation_chooses_where_it_holds_enough_boxes():
    train, held = clouds(seed=0), clouds(seed=0).take(np.arange(0, 120, 3))
    assert fit_names(train, held).judged_on == "validation boxes"
    assert fit_names(train, held).num_judged == 40
    assert fit_names(train, held.take(np.arange(5))).judged_on.startswith("training boxes")


def test_rare_labels_are_said():
    examples = clouds(num_labels=3)
    few = np.concatenate([np.arange(48), [48, 49, 50, 51]])
    assert fit_names(examples.take(few), None).rare == {"s2": 4}


def test_one_label_is_no_choice_and_labels_of_one_recording_cannot_be_judged():
    with pytest.raises(DataError, match="at least two"):
        fit_names(clouds(num_labels=1), None)
    examples = clouds(num_labels=2)
    apart = examples._replace(group=examples.label)
    with pytest.raises(DataError, match="two recordings"):
        fit_names(apart, None)
    elsewhere = clouds(num_labels=2, seed=0)  # but where validation has boxes of them, it is the judge
    assert fit_names(apart, elsewhere).judged_on == "validation boxes"


def test_names_come_back_from_their_files_and_what_does_not_fit_is_refused():
    names = fit_names(clouds(), None).names
    again = Names.of(names.settings(), names.tensors())
    points = clouds(seed=3).embedding
    boxes = BOX.repeat(len(points), 0)
    assert again.named(points, boxes).label == names.named(points, boxes).label
    with pytest.raises(ValueError, match="weights"):
        Names.of(names.settings() | {"labels": ["one", "too", "few"]}, names.tensors())
    with pytest.raises(ValueError, match="finite"):
        Names.of(names.settings(), names.tensors() | {"bias": np.full(5, np.nan, np.float32)})
    with pytest.raises(ValueError, match="uses_shape 'None'"):
        Names.of(names.settings() | {"uses_shape": None}, names.tensors())
    with pytest.raises(ValueError, match="unknown_below"):
        Names.of(names.settings() | {"unknown_below": 1.5}, names.tensors())


def test_a_share_is_wilsons_where_all_recordings_are_alike_and_drawn_where_they_differ():
    alike = share_interval([True] * 10, list("aabbccddee"))
    assert alike.method == "wilson" and alike.low == pytest.approx(0.722, abs=1e-3)
    rng = np.random.default_rng(0)
    per_recording = rng.beta(4, 2, 40)
    yes = np.concatenate([rng.random(10) < share for share in per_recording])
    found = share_interval(yes, np.repeat(np.arange(40), 10))
    half = 1.96 * yes.reshape(40, 10).mean(1).std(ddof=1) / np.sqrt(40)  # equal recordings: a mean of means
    assert found.low == pytest.approx(yes.mean() - half, abs=0.02)
    assert math.isnan(share_interval([], []).estimate)


def test_the_limit_lies_where_names_are_right_as_often_as_asked_for():
    confidence = np.linspace(0.99, 0.0, 100)
    right = np.arange(100) < 40  # the surest forty
    even = np.ones(100)
    assert limit_for_precision(confidence, right, even, 1.0) == pytest.approx(confidence[39])
    assert limit_for_precision(confidence, right, even, 0.5) == pytest.approx(confidence[79])
    weight = np.where(np.arange(100) < 40, 1.0, 3.0)  # strangers weigh more
    assert limit_for_precision(confidence, right, weight, 0.5) == pytest.approx(confidence[52])
    assert limit_for_precision(confidence, ~right, even, 0.9) is None
    assert limit_for_precision(confidence, np.arange(100) < 5, even, 0.9) is None  # five names are no share
    same = np.repeat([0.9, 0.1], 50)
    assert limit_for_precision(same, right, even, 0.8) == pytest.approx(0.9)  # 40 of 50: they fall together
    assert limit_for_precision(same, right, even, 0.85) is None


def test_a_stated_precision_is_kept_on_boxes_that_were_not_taught():
    examples = clouds(num_labels=8, apart=0.7, per_label=120)
    rows = np.arange(len(examples.label)) % 120 >= 60
    taught, asked = examples.take(~rows), examples.take(rows)
    shares = []
    for precision in (0.7, 0.9):
        found = fit_names(taught, None, precision=precision)
        named = found.names.named(asked.embedding, asked.boxes)
        sure = np.array([label != UNKNOWN for label in named.label])
        right = np.array(named.nearest, object) == asked.label
        assert right[sure].mean() > precision - 0.05 and not found.misses_precision
        shares.append(sure.mean())
    assert shares[0] > shares[1] > 0.02
