"""Tables of the next-site study, worked by hand from counts of four recordings at two sites."""

from argparse import Namespace

import numpy as np
import pytest
from next_site_scores import (
    Gain,
    Run,
    counts_of,
    mean_figure,
    paired_gain,
    read_runs,
    share_of_gap,
    tables,
    write_run,
)
from next_site_study import ROWS, SUPERVISED, Job, first_of_rows, last_student, start_of
from training_noise import gain_with_training, pooled_deviation

from mast_ray.config.loading import apply_overrides, parse_set
from mast_ray.config.recipes import field
from mast_ray.evaluation.events import events_from_annotations
from mast_ray.evaluation.scoring import score_tables
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet


def arrays(kept, hits, truths, sites=("A", "A", "B", "B")):
    """Counts of a split: every hit is ranked first, every false alarm last."""
    kept, hits, truths = (np.array(column, np.float32) for column in (kept, hits, truths))
    zeros = np.zeros_like(kept)
    bins = {f"{name}_{part}": np.zeros((len(kept), size), np.uint16)
            for name, size in (("duration", 7), ("bandwidth", 6)) for part in ("truth", "found")}  # fmt: skip
    bins["duration_truth"][:, 2], bins["duration_found"][:, 2] = truths, hits
    return {
        "recordings": np.array([f"r{n}" for n in range(len(kept))]),
        "sites": np.array(sites),
        "sums": np.stack([kept, hits, truths, zeros, zeros, zeros], axis=1),
        "hits": np.stack([hits, zeros], axis=1).astype(np.uint16),
        "alarms": np.stack([zeros, kept - hits], axis=1).astype(np.uint16),
    } | bins


def run(row, seed, *counts):
    own = {f"{split}.{name}": array
           for split in ("test", "temporal_ood", "site_ood") for name, array in arrays(*counts).items()}  # fmt: skip
    return Run(row, seed, {"row": row, "seed": seed, "samples": 10, "chunks_per_s": 5.0}, own)


TRUTHS = [10, 10, 10, 10]


def test_f1_is_that_of_all_recordings_together_and_the_mean_over_seeds():
    first = run("a", 0, [10, 10, 10, 10], [5, 5, 5, 5], TRUTHS)  # 20 of 40 right: 2 * 20 / (40 + 40)
    second = run("a", 1, [20, 20, 20, 20], [10, 10, 10, 10], TRUTHS)  # 2 * 40 / (80 + 40)
    assert mean_figure([first], "site_ood") == pytest.approx(0.5)
    assert mean_figure([first, second], "site_ood") == pytest.approx((0.5 + 2 / 3) / 2)
    assert mean_figure([first], "site_ood", figure="ap_area") == pytest.approx(
        0.5
    )  # right as far as recall goes


def test_the_best_threshold_leaves_out_what_ranks_below_it():
    one = run(
        "a", 0, [10] * 4, [5] * 4, TRUTHS
    )  # 20 hits rank first, 20 false alarms last: 2 * 20 / (20 + 40)
    assert mean_figure([one], "site_ood", figure="best_f1") == pytest.approx(2 / 3)


def test_a_site_is_scored_from_its_own_recordings():
    one = run("a", 0, [10, 10, 10, 10], [10, 10, 5, 5], TRUTHS)
    assert mean_figure([one], "site_ood", ("A",)) == pytest.approx(1.0)
    assert mean_figure([one], "site_ood", ("B",)) == pytest.approx(0.5)


def test_a_gain_that_is_the_same_in_every_recording_has_no_spread():
    before = [run("a", seed, [10] * 4, [5] * 4, TRUTHS) for seed in (0, 1)]
    after = [run("b", seed, [10] * 4, [6] * 4, TRUTHS) for seed in (0, 1)]
    gain = paired_gain(before, after, "site_ood")
    assert gain is not None and gain.seeds == 2
    assert (gain.estimate, gain.low, gain.high) == pytest.approx((0.1, 0.1, 0.1))


def test_only_seeds_that_both_rows_have_are_compared():
    before = [run("a", 0, [10] * 4, [5] * 4, TRUTHS)]
    after = [run("b", 0, [10] * 4, [7] * 4, TRUTHS), run("b", 1, [10] * 4, [0] * 4, TRUTHS)]
    gain = paired_gain(before, after, "site_ood")
    assert gain is not None and gain.seeds == 1 and gain.estimate == pytest.approx(0.2)
    assert paired_gain(before, after[1:], "site_ood") is None


def test_a_gain_of_the_frozen_threshold_alone_is_none_at_the_best_one_of_each():
    # both rank the same 20 hits first; one keeps 20 false alarms too: 2 * 20 / (40 + 40), or 2 * 20 / (20 + 40)
    before = [run("a", 0, [10] * 4, [5] * 4, TRUTHS)]
    after = [run("b", 0, [10] * 4, [5] * 4, TRUTHS)]
    after[0].arrays["site_ood.sums"][:, 0] = 5
    frozen, best = (paired_gain(before, after, "site_ood", figure=name) for name in ("f1", "best_f1"))
    assert frozen is not None and frozen.estimate == pytest.approx(2 / 3 - 0.5)
    assert best is not None and (best.estimate, best.low, best.high) == (0.0, 0.0, 0.0)
    table = tables([*before, *after], ["a", "b"], ["a"])
    assert "| unseen sites, each at its best threshold |" in table
    assert "| **+0.167** [+0.167, +0.167] | +0.000 [+0.000, +0.000] | +0.000 [+0.000, +0.000] |" in table


def test_a_gain_at_one_of_two_sites_is_surer_over_recordings_than_over_sites():
    before = [run("a", 0, [10] * 4, [5, 5, 5, 5], TRUTHS)]
    after = [run("b", 0, [10] * 4, [9, 9, 5, 5], TRUTHS)]
    over_recordings = paired_gain(before, after, "site_ood")
    over_sites = paired_gain(before, after, "site_ood", over="sites")
    assert over_recordings is not None and over_sites is not None
    assert over_recordings.estimate == over_sites.estimate == pytest.approx(0.2)
    assert over_sites.low == pytest.approx(0.0) and over_sites.high == pytest.approx(0.4)


def counted(*found):
    """Counts of (begin_s, end_s, score) detections beside two calls, of 0.3 and 3 s and 1 kHz, at a threshold of 0.5."""
    calls = ((1.0, 1.3), (5.0, 8.0))
    truth = tuple(Annotation("a.wav", begin, end, 1000.0, 2000.0) for begin, end in calls)
    detections = tuple(Annotation("a.wav", *span, 1000.0, 2000.0, score=score) for *span, score in found)
    tables = (
        events_from_annotations(AnnotationSet(one, frozenset({"a.wav"}))) for one in (detections, truth)
    )
    return counts_of(score_tables(*tables), 0.5)


def test_calls_are_counted_by_duration_and_found_only_at_the_threshold():
    counts = counted((1.0, 1.3, 0.9), (5.0, 8.0, 0.4))
    assert counts["duration_truth"].tolist() == [[0, 0, 0, 1, 0, 0, 1]]
    assert counts["duration_found"].tolist() == [[0, 0, 0, 1, 0, 0, 0]]


def test_detections_and_hits_are_counted_by_score_for_thresholds_to_be_tried_later():
    counts = counted((1.0, 1.3, 0.9), (5.0, 8.0, 0.4), (20.0, 20.5, 0.9))  # the last one is a false alarm
    assert counts["found_at"].sum() == 3 and counts["hits_at"].sum() == 2
    assert counts["found_at"][0, [80, 180]].tolist() == [1, 2]
    assert counts["hits_at"][0, [80, 180]].tolist() == [1, 1]


def test_a_detector_that_finds_nothing_is_counted_too():
    counts = counted()
    assert counts["duration_truth"].sum() == 2 and counts["duration_found"].sum() == 0
    assert counts["sums"].tolist() == [[0.0, 0.0, 2.0]]


def test_rows_that_were_scored_on_other_recordings_are_refused():
    other = run("b", 0, [10] * 4, [5] * 4, TRUTHS)
    other.arrays["site_ood.recordings"] = np.array(["x", "r1", "r2", "r3"])
    with pytest.raises(ValueError, match="same calls"):
        paired_gain([run("a", 0, [10] * 4, [5] * 4, TRUTHS)], [other], "site_ood")


def test_recordings_of_the_same_names_with_other_calls_are_another_archive_and_are_refused():
    other = run("b", 0, [10] * 4, [5] * 4, [10, 10, 11, 9])
    with pytest.raises(ValueError, match="same calls"):
        paired_gain([run("a", 0, [10] * 4, [5] * 4, TRUTHS)], [other], "site_ood")


def test_runs_are_read_as_they_were_written_and_make_all_tables(tmp_path):
    for row, hits in (("mast_printed", 5), ("hybrid", 6)):
        one = run(row, 0, [10] * 4, [hits] * 4, TRUTHS)
        splits: dict = {}
        for key, array in one.arrays.items():
            splits.setdefault(key.split(".")[0], {})[key.split(".")[1]] = array
        write_run(tmp_path / f"{row}-seed0", splits, one.facts)
    text = tables(read_runs(tmp_path), list(ROWS), ["mast_printed"])
    assert "| mast_printed | 0 | 0.500 (0.500) |" in text
    assert "| hybrid | 1 | **+0.100** [+0.100, +0.100] |" in text
    assert "| hybrid | 0.000 | 0.000 | 0.600 |" in text  # calls of 0.1 to 0.2 s


def test_the_share_of_the_gap_counts_from_supervised_to_ceiling():
    runs = [
        run(name, 0, [10] * 4, [hits] * 4, TRUTHS)
        for name, hits in (("s", 5), ("c", 5), ("t", 6), ("top", 9))
    ]
    assert "25 % of the gap closed" in share_of_gap(runs, "s", "c", "t", "top")
    assert share_of_gap(runs[:3], "s", "c", "t", "top") == ""


def test_the_share_of_the_gap_is_of_seeds_that_all_rows_have():
    first = [
        run(name, 0, [10] * 4, [hits] * 4, TRUTHS) for name, hits in zip("scto", (5, 5, 6, 9), strict=True)
    ]
    second = [run(name, 1, [10] * 4, [hits] * 4, TRUTHS) for name, hits in zip("sct", (1, 1, 8), strict=True)]
    assert "25 % of the gap closed" in share_of_gap([*first, *second], "s", "c", "t", "o")
    assert share_of_gap([*first[:3], *second], "s", "c", "t", "o") == ""


def test_a_gain_is_bold_only_beyond_noise():
    assert Gain(0.1, 0.05, 0.15, 2).text() == "**+0.100** [+0.050, +0.150]"
    assert Gain(0.1, -0.05, 0.15, 2).text() == "+0.100 [-0.050, +0.150]"


def test_detectors_of_all_seeds_share_an_encoder_and_students_begin_with_the_teacher_of_their_seed():
    args = Namespace(seeds=[3, 4])
    encoder, teacher = (start_of(Job(ROWS[name], 4), args) for name in ("field_pretrained", "self_trained"))
    assert encoder is not None and teacher is not None
    assert (encoder.name, teacher.name) == ("encoder-seed3", "field-seed4")


def test_the_last_student_is_the_end_of_the_last_round(tmp_path):
    assert last_student(tmp_path) is None
    for place in ("round0/evaluation", "round2/mixed", "round2/averaged", "round10/stage1", "round10/stage2"):
        (tmp_path / place).mkdir(parents=True)
        if "evaluation" not in place:
            (tmp_path / place / "card.json").write_text("{}")
    assert last_student(tmp_path) == tmp_path / "round10" / "stage2"
    (tmp_path / "round10" / "averaged").mkdir()
    (tmp_path / "round10" / "averaged" / "card.json").write_text("{}")
    assert last_student(tmp_path) == tmp_path / "round10" / "averaged"


def test_every_row_starts_from_a_row_and_later_settings_win():
    for row in ROWS.values():
        assert not row.start or row.start in ROWS
        assert all(name in ROWS for name in row.with_rows)
    assert set(SUPERVISED) <= set(ROWS)
    chosen = dict(one.split("=") for one in ROWS["field"].all_sets())
    assert (chosen["model.adapter"], chosen["spectrogram.background"]) == ("hybrid", "median")
    trained = apply_overrides(field(), parse_set(ROWS["field"].all_sets()))
    assert trained.augment == field().augment and trained.spectrogram == field().spectrogram
    chosen = dict(one.split("=") for one in ROWS["hybrid_median_strong"].all_sets())
    assert chosen["spectrogram.background"] == "median" and chosen["augment.gain_db"] == "12"


def test_one_run_of_a_row_compiles_at_a_time():
    first, second, other = Job(ROWS["field"], 0), Job(ROWS["field"], 1), Job(ROWS["hybrid"], 1)
    assert first_of_rows([first, second, other], set()) == [first, other]
    assert first_of_rows([second, other], {"field"}) == [other]


def f1_run(row, seed, right):
    """All four recordings alike, so that drawing them anew changes nothing: F1 is right / 10."""
    return run(row, seed, [10] * 4, [right] * 4, TRUTHS)


def test_the_noise_of_training_is_pooled_over_rows_and_widens_gains():
    first = [f1_run("a", 0, 4), f1_run("a", 1, 6)]  # mean 0.5, squares 0.01 + 0.01
    second = [f1_run("b", 0, 8), f1_run("b", 1, 9), f1_run("b", 0, 7)]  # mean 0.8, the same squares
    deviation, freedom = pooled_deviation([first, second, [f1_run("c", 0, 1)]])
    assert freedom == 3
    assert deviation == pytest.approx((0.04 / 3) ** 0.5)
    gain = gain_with_training(first, second, 0.1)
    half = 1.96 * 0.1 * (1 / 2 + 1 / 3) ** 0.5
    assert (gain.estimate, gain.low, gain.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half))
