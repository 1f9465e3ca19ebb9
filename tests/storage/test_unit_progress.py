"""The progress line of a sweep, as the log of a job holds it."""

import io

from mast_ray.storage.unit_progress import UnitProgress
from mast_ray.storage.unit_runner import UnitReport


def report(num_items, num_bytes=0, audio_s=0.0, num_rejected=0):
    return UnitReport("u", num_items, num_rejected, num_bytes, 1.0, {"audio_s": audio_s})


def test_a_log_has_a_line_every_tenth():
    now, out = [0.0], io.StringIO()
    progress = UnitProgress("detect", 40, 40, out, lambda: now[0])
    for _ in range(40):
        now[0] += 1.0
        progress.add(report(1, 1, 3600.0))
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [str(4 * tenth) for tenth in range(1, 11)]
    assert lines[0] == "detect: 4 of 40 recordings, 4.0 h, 3,600 x real time, 0 rejected, 0:00:36 left"


def test_a_log_has_a_line_every_minute_where_a_tenth_takes_hours():
    now, out = [0.0], io.StringIO()
    progress = UnitProgress("detect", 10_000_000, 10_000_000, out, lambda: now[0])
    for _ in range(10):  # five minutes, 5,000 of ten million recordings
        now[0] += 30.0
        progress.add(report(500, 500, 500 * 360.0, num_rejected=1))
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1,000", "2,000", "3,000", "4,000", "5,000"]
    assert lines[0].startswith(
        "detect: 1,000 of 10,000,000 recordings, 100.0 h, 6,000 x real time, 2 rejected, 166:"
    )


def test_empty_files_first_do_not_make_the_rest_last_for_ever():
    now = [0.0]
    progress = UnitProgress("detect", 40, 10**12, io.StringIO(), lambda: now[0])
    now[0] = 10.0
    progress.add(report(4, 0, num_rejected=4))
    assert progress.seconds_left() == 90.0  # it was ten thousand million hours
