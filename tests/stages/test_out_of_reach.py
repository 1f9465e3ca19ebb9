"""What lies in the disk, the mount or the network is no fault of a recording: it is tried again, kept, or stops the job."""

import builtins
import errno
import os
import shutil

import pyarrow.parquet as pq
import pytest
from stopped import Killed, stopped_at
from tones import Tone, sweep_tones, write_tones

from mast_ray.config.errors import PARTIAL, ConfigError, TemporaryError
from mast_ray.config.recipes import tiny
from mast_ray.recordings.decoding import inspection
from mast_ray.reporting.detection_tables import read_detections, read_recordings
from mast_ray.stages.detect.earlier import EARLIER, forget_earlier
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.preparing.inventory import list_archive


def write_recordings(root, names, begin_s=2.0):
    for number, name in enumerate(names):
        write_tones(root / name, [Tone(begin_s, begin_s + 0.5, 1500.0)], 12.0, seed=number)
    return root


def hours(site, count):
    return [f"{site}/{site}_20240501_{hour:02d}0000.wav" for hour in range(count)]


def failing(monkeypatch, number, *names):
    """Every opening of these files fails as a disk does."""

    def refuse(path, *rest, **options):
        if any(str(path).endswith(name) for name in names):
            raise OSError(number, os.strerror(number), str(path))
        return builtins.open(path, *rest, **options)

    monkeypatch.setattr(inspection, "open", refuse, raising=False)


def prepared(archive, out):
    return prepare(PrepareInputs(str(archive), str(out)), tiny(), runner=HERE)


def swept(archive, out):
    return sweep_tones(archive, out)


def done_and_reasons(out):
    rejects = pq.read_table(out / "rejects.parquet").to_pylist()
    paths = pq.read_table(out / "recordings.parquet").column("path").to_pylist()
    return sorted(paths), {row["path"]: row["reason"] for row in rejects}


@pytest.mark.parametrize(
    ("run", "number"),
    [(prepared, errno.EIO), (swept, errno.ESTALE), (prepared, errno.EMFILE), (swept, errno.EACCES)],
)
def test_a_recording_the_disk_will_not_give_is_tried_again_by_the_next_run(
    tmp_path, monkeypatch, run, number
):
    names = hours("A", 6)
    archive, out = write_recordings(tmp_path / "in", names), tmp_path / "out"
    with monkeypatch.context() as patch:
        failing(patch, number, names[2])
        assert run(archive, out) == PARTIAL
        reason = "NO_PERMISSION" if number == errno.EACCES else "READ_ERROR"
        assert done_and_reasons(out) == ([n for n in names if n != names[2]], {names[2]: reason})
        assert run(archive, out) == PARTIAL  # still away: the run says so again
    assert run(archive, out) == 0
    assert done_and_reasons(out) == (names, {})


@pytest.mark.parametrize("run", [prepared, swept])
def test_a_disk_that_gives_nothing_stops_the_job_and_is_held_against_no_recording(tmp_path, monkeypatch, run):
    names = hours("A", 12)
    archive, out = write_recordings(tmp_path / "in", names), tmp_path / "out"
    with monkeypatch.context() as patch:
        failing(patch, errno.EIO, ".wav")
        with pytest.raises(TemporaryError, match="5 recordings in a row"):
            run(archive, out)
    assert run(archive, out) == 0
    assert done_and_reasons(out) == (names, {})


@pytest.mark.parametrize("run", [prepared, swept])
def test_an_archive_that_vanishes_in_the_middle_stops_the_job_at_once(tmp_path, monkeypatch, run):
    names = hours("A", 8)
    archive, out = write_recordings(tmp_path / "in", names), tmp_path / "out"
    with monkeypatch.context() as patch:

        def unmount(path, *rest, **options):
            if str(path).endswith(names[1]):
                archive.rename(tmp_path / "elsewhere")
                archive.mkdir()  # what an unmounted disk leaves behind
            return builtins.open(path, *rest, **options)

        patch.setattr(inspection, "open", unmount, raising=False)
        with pytest.raises(TemporaryError, match="still mounted"):
            run(archive, out)
    archive.rmdir()
    (tmp_path / "elsewhere").rename(archive)
    assert run(archive, out) == 0
    assert done_and_reasons(out) == (names, {})


@pytest.mark.parametrize("run", [prepared, swept])
def test_links_to_nowhere_and_to_themselves_and_pipes_are_offered_and_rejected(tmp_path, run):
    names = hours("A", 3)
    archive, out = write_recordings(tmp_path / "in", names), tmp_path / "out"
    (archive / "A" / "annex.wav").symlink_to(".git/annex/objects/not-here")
    (archive / "A" / "loop.wav").symlink_to("loop.wav")
    os.mkfifo(archive / "A" / "pipe.wav")
    assert len(list_archive(open_storage(archive)).items) == 6
    assert run(archive, out) == PARTIAL
    paths, reasons = done_and_reasons(out)
    assert paths == names
    assert reasons == {"A/annex.wav": "MISSING", "A/loop.wav": "MISSING", "A/pipe.wav": "NOT_A_FILE"}


def test_many_links_to_nowhere_are_no_reason_to_stop(tmp_path):
    archive = write_recordings(tmp_path / "in", hours("A", 1))
    for number in range(20):
        (archive / f"{number:02d}.wav").symlink_to("annex")
    assert swept(archive, tmp_path / "out") == PARTIAL
    assert len(done_and_reasons(tmp_path / "out")[1]) == 20


def test_a_second_archive_into_the_same_folder_keeps_the_detections_of_the_first(tmp_path, capsys):
    first = write_recordings(tmp_path / "first", hours("A", 7))
    second = write_recordings(tmp_path / "second", hours("B", 3), begin_s=5.0)
    out = tmp_path / "out"
    sweep_tones(first, out)
    before = read_detections(str(out)).to_pylist()
    assert sweep_tones(second, out) == 0
    assert "7 recordings of earlier runs are not in" in capsys.readouterr().out
    assert {row["site"] for row in read_detections(str(out)).to_pylist()} == {"B"}
    assert read_recordings(str(out)).num_rows == 3
    aside = str(out / EARLIER)
    assert read_detections(aside).to_pylist() == before and read_recordings(aside).num_rows == 7
    assert sweep_tones(first, out) == 0  # back again: nothing is worked on, and the second lies aside
    assert "7 recordings of an earlier run are offered again" in capsys.readouterr().out
    assert read_detections(str(out)).to_pylist() == before
    assert read_recordings(aside).column("site").to_pylist() == ["B"] * 3


def test_half_a_disk_that_comes_back_costs_no_work(tmp_path, capsys):
    archive, out = write_recordings(tmp_path / "in", [*hours("A", 3), *hours("B", 3)]), tmp_path / "out"
    sweep_tones(archive, out)
    whole = read_detections(str(out)).sort_by("path").to_pylist()
    shutil.move(archive / "B", tmp_path / "B")
    sweep_tones(archive, out)
    shutil.move(tmp_path / "B", archive / "B")
    capsys.readouterr()
    assert sweep_tones(archive, out) == 0
    assert "; 0 recordings were worked on in this run" in capsys.readouterr().out
    assert read_detections(str(out)).sort_by("path").to_pylist() == whole
    assert not (out / EARLIER / "recordings.parquet").exists()


def test_what_is_missing_is_deleted_only_for_somebody_who_is_sure(tmp_path):
    first, second = (
        write_recordings(tmp_path / "1", hours("A", 2)),
        write_recordings(tmp_path / "2", hours("B", 2)),
    )
    out = tmp_path / "out"
    sweep_tones(first, out)
    sweep_tones(second, out)
    with pytest.raises(ConfigError, match=r"2 recordings .*\n.*--yes"):
        forget_earlier(open_storage(out), is_sure=False)
    assert read_recordings(str(out / EARLIER)).num_rows == 2
    assert forget_earlier(open_storage(out), is_sure=True) == 2
    assert list(open_storage(out).list(EARLIER)) == [] and read_recordings(str(out)).num_rows == 2


def test_killed_while_it_deletes_what_is_missing_the_same_command_deletes_the_rest(tmp_path, monkeypatch):
    out, before = tmp_path / "out", tmp_path / "before"
    for name in ("A", "B"):
        sweep_tones(write_recordings(tmp_path / name, hours(name, 2)), before)
    for number in range(1, 20):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(before, out)
        with stopped_at(monkeypatch, number) as tried:
            try:
                forget_earlier(open_storage(out), is_sure=True)
                break
            except Killed:
                pass
        forget_earlier(open_storage(out), is_sure=True)
        assert list(open_storage(out).list(EARLIER)) == [], tried[-1]
    assert number > 5


def test_what_a_killed_run_had_done_anew_is_set_aside_once_and_comes_back(tmp_path, monkeypatch):
    archive = write_recordings(tmp_path / "archive", hours("SITE01", 2))
    out = tmp_path / "out"
    swept(archive, out)
    found = read_detections(str(out)).num_rows
    for path in archive.rglob("*.wav"):  # copied without their times, say
        os.utime(path, (1e9, 1e9))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("mast_ray.stages.detect.detect.survey", killed)
        swept(archive, out)
    (archive / "SITE01").rename(tmp_path / "card")
    write_recordings(archive, hours("SITE02", 1))
    swept(archive, out)
    earlier = out / EARLIER
    assert read_recordings(str(earlier)).column("path").to_pylist() == hours("SITE01", 2)
    assert read_detections(str(earlier)).num_rows == found
    (tmp_path / "card").rename(archive / "SITE01")
    assert swept(archive, out) == 0
    assert done_and_reasons(out) == ([*hours("SITE01", 2), *hours("SITE02", 1)], {})
    assert not (earlier / "recordings.parquet").exists() and not list(earlier.rglob("*.arrow"))
