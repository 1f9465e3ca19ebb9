"""Metrics as tables: JSONL while running, Parquet at the end, no step twice."""

import errno
import threading

import pyarrow.parquet as pq
import pytest

from mast_ray.storage.storage import open_storage
from mast_ray.training.files.metrics_log import MetricsLog, read_metrics


def test_rows_are_read_back_and_end_in_a_parquet_table(tmp_path):
    storage = open_storage(tmp_path)
    log = MetricsLog(storage, board="none")
    log.begin(0)
    log.add("train", 1, 8, {"loss": 2.5})
    log.add("validation", 1, 8, {"f1": 0.25, "ap": float("nan")})
    log.close()
    assert read_metrics(storage)[0] == {"kind": "train", "step": 1, "samples": 8, "loss": 2.5}
    table = pq.read_table(tmp_path / "metrics.parquet").to_pydict()
    assert (
        table["kind"] == ["train", "validation"]
        and table["loss"] == [2.5, None]
        and table["ap"][1] != table["ap"][1]
    )


def test_a_resumed_run_drops_the_rows_after_its_checkpoint(tmp_path):
    storage = open_storage(tmp_path)
    log = MetricsLog(storage, board="none")
    log.begin(0)
    for step in range(1, 6):
        log.add("train", step, step, {"loss": float(step)})
    log.flush()
    again = MetricsLog(storage, board="none")
    again.begin(3)
    again.add("train", 4, 4, {"loss": 40.0})
    again.flush()
    assert [(row["step"], row["loss"]) for row in read_metrics(storage)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 40.0),
    ]


def test_tensorboard_gets_the_same_scalars(tmp_path):
    log = MetricsLog(open_storage(tmp_path))
    log.begin(0)
    log.add("train", 3, 24, {"loss": 1.5})
    log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(3, 1.5)]


def test_rows_are_written_once_half_a_minute_has_passed(tmp_path):
    now = [0.0]
    storage = open_storage(tmp_path)
    log = MetricsLog(storage, board="none", now=lambda: now[0])
    log.begin(0)
    log.add("train", 1, 8, {"loss": 1.0})
    assert read_metrics(storage) == []
    now[0] = 31.0
    log.add("train", 2, 16, {"loss": 1.0})
    assert len(read_metrics(storage)) == 2


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_under_tensorboard_is_raised_once_and_no_thread_shows_a_traceback(tmp_path, monkeypatch):
    from tensorboard.summary.writer import record_writer

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_writer.RecordWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        MetricsLog(open_storage(tmp_path)).begin(0)
    for thread in threading.enumerate():
        if type(thread).__name__ == "_AsyncWriterThread":
            thread.join(10)
