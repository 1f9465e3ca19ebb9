"""Where to listen first."""

import numpy as np
import pyarrow as pa
import pytest

from mast_ray.config.errors import DataError
from mast_ray.reporting.detection_tables import conform
from mast_ray.reporting.stretches import activity_of, busiest_stretches
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS


def recordings(**durations_s):
    columns = {"recording_id": list(durations_s), "path": [f"{name}.wav" for name in durations_s],
               "duration_s": list(durations_s.values()), "site": ["S"] * len(durations_s)}  # fmt: skip
    return conform(pa.table(columns), RECORDINGS, (), "test")


def detections(*rows):
    """(recording, begin_s, end_s, score)"""
    columns = {
        "recording_id": [r[0] for r in rows], "path": [f"{r[0]}.wav" for r in rows], "site": ["S"] * len(rows),
        "begin_s": [r[1] for r in rows], "end_s": [r[2] for r in rows], "score": [r[3] for r in rows],
        "low_hz": [1000.0] * len(rows), "high_hz": [2000.0 + r[1] for r in rows],
    }  # fmt: skip
    return conform(pa.table(columns), DETECTIONS, (), "test")


def test_activity_is_the_best_score_averaged_over_two_seconds():
    activity = activity_of(np.array([4.0, 4.0]), np.array([6.0, 5.0]), np.array([0.5, 0.8]), 10.0)
    assert len(activity) == 100
    assert activity[50] == pytest.approx((10 * 0.8 + 10 * 0.5) / 20)  # 4 to 5 s at 0.8, 5 to 6 s at 0.5
    assert activity[40] == pytest.approx(10 * 0.8 / 20)  # 3 to 5 s
    assert activity[29] == activity[71] == 0.0
    assert activity_of(np.array([0.0]), np.array([1.0]), np.array([1.0]), 10.0)[0] == pytest.approx(1.0)


def test_a_song_with_gaps_comes_before_a_lonely_box_of_a_higher_score():
    song = [("song", 4 + 0.4 * i, 4.2 + 0.4 * i, 0.7) for i in range(8)]
    found = busiest_stretches(detections(*song, ("click", 5.0, 5.1, 0.9)), recordings(song=10, click=10), 0.1)
    assert found.column("path").to_pylist() == ["song.wav"]
    begin_s, end_s = (found.column(name)[0].as_py() for name in ("begin_s", "end_s"))
    assert 4.2 < begin_s < 5.6 < end_s < 7.2  # the middle of the song is in it
    assert 1.5 < end_s - begin_s <= 2.0  # a tenth of twenty seconds
    assert found.column("low_hz").to_pylist() == [1000.0]
    assert found.schema.names[: len(DETECTIONS.names)] == DETECTIONS.names


def test_no_more_time_is_chosen_than_asked_for_and_none_without_a_call():
    rows = [("a", float(t), t + 0.5, 0.3 + 0.01 * t) for t in range(50)]
    for share in (0.05, 0.2, 0.5):
        found = busiest_stretches(detections(*rows), recordings(a=60, b=60), share)
        lengths = np.array(found.column("end_s").to_pylist()) - np.array(found.column("begin_s").to_pylist())
        assert 0.6 * share * 120 < lengths.sum() <= share * 120 + 1e-6
    assert len(busiest_stretches(detections(), recordings(a=60), 0.5)) == 0
    found = busiest_stretches(detections(("a", 1.0, 2.0, 0.5)), recordings(a=60), 0.9)
    assert found.column("end_s")[0].as_py() <= 3.1  # where nothing was found there is nothing to hear first


def test_a_stretch_between_two_calls_that_holds_neither_has_their_band():
    found = busiest_stretches(detections(("a", 4.0, 4.1, 0.9), ("a", 5.6, 5.7, 0.9)), recordings(a=60), 0.007)
    begin_s, end_s = (found.column(name)[0].as_py() for name in ("begin_s", "end_s"))
    assert 4.1 < begin_s < end_s < 5.6
    assert (found.column("low_hz")[0].as_py(), found.column("high_hz")[0].as_py()) == (1000.0, 2005.6)


def test_what_cannot_be_chosen_is_refused():
    with pytest.raises(DataError, match="between 0 and 1"):
        busiest_stretches(detections(("a", 1.0, 2.0, 0.5)), recordings(a=60), 10.0)
    with pytest.raises(DataError, match="--recordings"):
        busiest_stretches(detections(("elsewhere", 1.0, 2.0, 0.5)), recordings(a=60), 0.1)
