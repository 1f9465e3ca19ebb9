"""The review sheet: whom it draws, and whether its intervals keep their promise."""

import numpy as np
import pytest
from review_sheets import draw_review, precision_at

from mast_ray.evaluation.review.sheet import (
    Cell,
    PrecisionCurve,
    band_edges_of,
    draw_places,
    num_above,
    precision_of_counts,
    threshold_for_precision,
)


def archive(rng, size=3000):
    """Many weak and few strong detections, right more often the stronger they are, at three uneven sites."""
    score = np.clip(rng.beta(1, 3, size), 0.01, 1)
    right = rng.random(size) < 1 / (1 + np.exp(-(score - 0.4) * 10))
    return score, right, rng.choice(["A", "B", "C"], size, p=[0.6, 0.3, 0.1]), rng.integers(0, 24, size)


@pytest.mark.slow
def test_intervals_of_95_percent_cover_the_simulated_precision_in_at_least_93_percent_of_500_repeats():
    rng = np.random.default_rng(0)
    thresholds = np.array([0.05, 0.2, 0.4, 0.6])
    covered = np.zeros(len(thresholds))
    for repeat in range(500):
        score, right, site, hour = archive(rng)
        sheet = draw_review(score, site, hour, 160, seed=repeat)
        curve = precision_at(thresholds, score, score[sheet.rows], right[sheet.rows], sheet.band_edges)
        truth = np.array([right[score >= t].mean() for t in thresholds])
        covered += (curve.low - 1e-9 <= truth) & (truth <= curve.high + 1e-9)
    assert (covered / 500 >= 0.93).all(), covered / 500


def test_sheet_draws_every_score_band_equally_and_sites_and_hours_in_their_share():
    rng = np.random.default_rng(1)
    score, _, site, hour = archive(rng, 40_000)
    sheet = draw_review(score, site, hour, 400, seed=0, num_bands=4)
    assert len(np.unique(sheet.rows)) == 400
    per_band = np.histogram(score[sheet.rows], sheet.band_edges)[0]
    assert per_band.tolist() == [100, 100, 100, 100]
    lowest = sheet.rows[score[sheet.rows] < sheet.band_edges[1]]
    shares = [np.mean(site[lowest] == name) for name in "ABC"]
    np.testing.assert_allclose(shares, [0.6, 0.3, 0.1], atol=0.02)  # systematic: closer than chance
    assert len(np.unique(hour[lowest][site[lowest] == "A"])) >= 20


def test_same_seed_draws_the_same_sheet_and_small_tables_are_drawn_whole():
    rng = np.random.default_rng(2)
    score, _, site, hour = archive(rng, 30)
    first, second = (draw_review(score, site, hour, 20, seed=5).rows for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert sorted(draw_review(score, site, hour, 99, seed=5).rows) == list(range(30))
    assert len(draw_review([], [], [], 10, seed=0).rows) == 0


def test_a_sheet_that_reviewed_everything_knows_the_precision_exactly():
    rng = np.random.default_rng(3)
    score, right, site, hour = archive(rng, 50)
    sheet = draw_review(score, site, hour, 50, seed=0)
    curve = precision_at([0.0, 0.3], score, score[sheet.rows], right[sheet.rows], sheet.band_edges)
    truth = [right.mean(), right[score >= 0.3].mean()]
    np.testing.assert_allclose(curve.precision, truth)
    np.testing.assert_allclose(curve.low, truth)
    assert curve.num_reviewed.tolist() == curve.num_detections.tolist()


def test_bands_are_weighted_by_their_detections_not_by_their_verdicts():
    # Two bands; 90 weak detections of which none is right, 10 strong ones all right, two verdicts each.
    score = np.repeat([0.25, 0.75], [90, 10])
    curve = precision_at([0.0], score, [0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1], np.array([0.0, 0.5, 1.0]))
    assert curve.precision[0] == pytest.approx(0.1)


def test_precision_is_unknown_where_no_detection_or_hardly_any_verdict_lies():
    score = np.repeat([0.25, 0.75], [10, 90])
    curve = precision_at([0.0, 0.9], score, [0.25], [1], np.array([0.0, 0.5, 1.0]))
    assert np.isnan(curve.precision).all()


def test_threshold_for_a_target_is_the_lowest_whose_lower_limit_reaches_it():
    none = np.zeros(6)
    low = np.array([0.5, 0.92, 0.6, 0.91, 0.93, 0.4])
    high = np.array(
        [0.7, 0.95, 0.8, 0.98, 0.99, 1.0]
    )  # at 0.3 the precision surely misses 0.9, at 0.6 nobody knows
    curve = PrecisionCurve(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), low, low, high, none, none)
    assert threshold_for_precision(curve, 0.9) == 0.4
    assert np.isnan(threshold_for_precision(curve, 0.99))


def test_places_of_cells_are_drawn_alike_in_bands_and_never_twice():
    cells = [Cell(band, site, hour) for band in (0, 1, 5) for site in ("A", "B") for hour in (-1, 6)]
    count = np.array([100, 1, 50, 49, 3, 3, 3, 3, 1, 0, 1, 0])
    drawn = draw_places(cells, count, 40, seed=3)
    pairs = list(zip(drawn.cell.tolist(), drawn.place.tolist(), strict=True))
    assert len(set(pairs)) == 40 and all(0 <= place < count[cell] for cell, place in pairs)
    band = np.array([cell.band for cell in cells])[drawn.cell]
    assert [int((band == number).sum()) for number in (0, 1, 5)] == [26, 12, 2]  # all of the small bands
    in_b = np.isin(drawn.cell, [2, 3])[band == 0].sum()  # half of the first band is of site B
    assert 12 <= in_b <= 14


def test_precision_from_counts_of_files_is_that_of_all_scores():
    rng = np.random.default_rng(0)
    files = [rng.beta(0.6, 2.0, number) for number in (200, 1, 57)]
    score, thresholds = np.concatenate(files), [0.0, 0.2, 0.5]
    edges = band_edges_of(score)
    np.testing.assert_array_equal(edges, band_edges_of([score.min(), score.max()]))
    reviewed, right = score[::7], rng.random(len(score[::7])) < 0.5
    counts = sum(num_above(thresholds, one, edges) for one in files)
    assert counts[0].sum() == len(score) and counts[2].sum() == (score >= 0.5).sum()
    whole = precision_at(thresholds, score, reviewed, right, edges)
    for one, other in zip(
        precision_of_counts(thresholds, counts, reviewed, right, edges), whole, strict=True
    ):
        np.testing.assert_array_equal(one, other)
