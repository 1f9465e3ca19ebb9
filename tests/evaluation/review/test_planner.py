"""Plans of what to annotate next: balanced, doubtful, far away; never the same
sound twice; readable by Raven.
"""

import numpy as np
import pytest

from mast_ray.evaluation.review.planner import (
    Candidates,
    chunk_uncertainty,
    plan_annotation,
    plan_as_annotations,
)
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.recordings.annotations.writing import write_annotations


def candidates(num_recordings=24, chunks_each=6, **columns):
    recording = np.repeat(np.arange(num_recordings), chunks_each)
    return Candidates(
        [f"rec{r}" for r in recording],
        np.tile(np.arange(chunks_each), num_recordings),
        (recording % 24).astype(float),
        [f"S{r % 2}" for r in recording],
        columns.get("uncertainty"),
        columns.get("embeddings"),
    )


def test_time_balanced_plan_takes_every_hour_before_any_hour_twice():
    plan = plan_annotation(candidates(), 24, "time_balanced", seed=3)
    assert sorted(int(choice.recording_id[3:]) % 24 for choice in plan) == list(range(24))
    assert "hour" in plan[0].reason and plan[0].strategy == "time_balanced"


def test_rare_hours_are_drawn_although_most_chunks_lie_in_one():
    hour = np.array([5.0] * 50 + [23.0])
    rare = Candidates([f"r{n}" for n in range(51)], np.zeros(51, int), hour, [""] * 51)
    assert "r50" in {choice.recording_id for choice in plan_annotation(rare, 2, "time_balanced")}


def test_uncertainty_counts_detections_near_the_threshold_and_not_the_clear_ones():
    doubt = chunk_uncertainty([0, 1, 1, 2], [0.3, 0.999, 0.001, 0.3], 4, threshold=0.3)
    np.testing.assert_allclose(doubt[[0, 2, 3]], [1.0, 1.0, 0.0], atol=1e-9)
    assert doubt[1] < 0.05


def test_uncertain_chunks_come_first_and_their_neighbours_not_at_all():
    value = np.zeros(144)
    value[[3, 4, 60]] = [0.9, 0.8, 0.7]  # 3 and 4 are chunks of one recording that share half their sound
    plan = plan_annotation(candidates(uncertainty=value), 3, "uncertainty")
    assert [c.chunk_id for c in plan[:2]] == ["rec0:3", "rec10:0"]
    assert "rec0:4" not in {
        c.chunk_id for c in plan_annotation(candidates(uncertainty=value), 100, "uncertainty")
    }


def test_coverage_goes_to_the_farthest_corner_like_a_greedy_search_by_hand():
    angle = np.deg2rad([0, 2, 90, 92, 180])
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    five = Candidates([f"r{n}" for n in range(5)], np.zeros(5, int), np.zeros(5), [""] * 5, None, vectors)
    plan = plan_annotation(five, 3, "coverage", known_embeddings=[[1.0, 0.0]])
    # From 0 degrees: 180 is farthest; then 90 (1.414 from 180 and 0) beats 92 (1.389 from 180).
    assert [c.recording_id for c in plan[:2]] == ["r4", "r2"]
    assert plan[0].reason.startswith("2.00 away")


def test_mixed_plan_takes_turns_and_passes_over_neighbours_of_what_it_has():
    rng = np.random.default_rng(0)
    pool = candidates(uncertainty=rng.random(144), embeddings=rng.normal(size=(144, 100)).astype(np.float32))
    plan = plan_annotation(pool, 9, "mixed", seed=1)
    assert [c.strategy for c in plan[:3]] == ["time_balanced", "uncertainty", "coverage"]
    assert len({c.chunk_id for c in plan}) == 9
    assert plan == plan_annotation(pool, 9, "mixed", seed=1)
    whole = plan_annotation(pool, 10_000, "mixed")
    places = {(c.recording_id, c.chunk) for c in whole}
    assert not places & {(recording, chunk + 1) for recording, chunk in places}
    assert 24 * 2 <= len(whole) <= 24 * 3  # at most every other of six chunks


def test_a_strategy_without_its_column_says_what_it_needs():
    with pytest.raises(ValueError, match="embeddings"):
        plan_annotation(candidates(), 1, "coverage")


@pytest.mark.parametrize("format", ["raven", "audacity", "aoef"])
def test_plan_written_as_task_file_reads_back_with_the_same_times(tmp_path, format):
    plan = plan_annotation(candidates(num_recordings=2), 2, "time_balanced")
    paths = {"rec0": "a/x.wav", "rec1": "b/y.wav"}
    tasks = plan_as_annotations(plan, paths)
    target = tmp_path / "tasks.json" if format == "aoef" else tmp_path / "tasks"
    write_annotations(tasks, target, format)
    again = read_annotations(target, recordings=paths.values())
    expected = sorted((paths[c.recording_id], c.begin_s, c.end_s) for c in plan)
    found = sorted((a.path, a.begin_s, a.end_s) for a in again.annotations)
    assert [f[0] for f in found] == [e[0] for e in expected]
    np.testing.assert_allclose([f[1:] for f in found], [e[1:] for e in expected], atol=1e-6)
