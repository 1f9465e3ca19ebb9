"""What is known of a recording survives the way through a commit, and becomes rows."""

import json
from datetime import UTC, datetime

import pyarrow as pa

from mast_ray.storage.units import Item
from mast_ray.tables.preparing.recording_record import RecordingRecord, Salvage, reject_row
from mast_ray.tables.schemas import RECORDINGS, REJECTS

START = datetime(2024, 5, 1, 4, 30, tzinfo=UTC)
WHOLE = RecordingRecord(
    "a/x.wav", "S1", START, 7200, "filename", "", 52.5, 13.4, 60.0, 48_000, 2, 11_520_044, 5998, 11, "f0"
)


def test_a_record_comes_back_from_json_as_it_was():
    cut = RecordingRecord(
        *[getattr(WHOLE, name) for name in WHOLE.columns()], Salvage("TRUNCATED", "half a file", 30.0)
    )
    unknown = RecordingRecord(
        "y.wav", "", None, None, "none", "", None, None, 1.5, 16_000, 1, 48_044, 148, 1, "f1"
    )
    for record in (WHOLE, cut, unknown):
        assert RecordingRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_row_has_the_columns_of_the_table_and_tells_what_was_salvaged():
    row = WHOLE.row("id", is_annotated=True)
    assert set(row) == set(RECORDINGS.names) and not row["is_salvaged"] and row["is_annotated"]
    assert pa.Table.from_pylist([row], schema=RECORDINGS).to_pylist()[0]["start_utc"] == START


def test_a_rejected_recording_is_a_row_with_its_reason():
    row = reject_row(Item("id", "a/x.wav", 10, "v"), "rejected", "EMPTY", "no samples")
    assert set(row) == set(REJECTS.names)
    assert (row["path"], row["status"], row["reason"], row["readable_s"]) == (
        "a/x.wav",
        "rejected",
        "EMPTY",
        0.0,
    )
