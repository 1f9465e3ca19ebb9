"""Archives on disk: what is written, what is skipped, what survives an
interruption, and damage done on purpose.
"""

import csv
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.recordings.decoding.faults import UnreadableRecording
from mast_ray.recordings.decoding.reading import open_recording
from mast_ray.soundscapes import damage
from mast_ray.soundscapes.archive import write_archive
from mast_ray.soundscapes.damage import (
    DAMAGE_KINDS,
    REASON_OF_KIND,
    damage_archive,
)
from mast_ray.soundscapes.render import SoundscapeSpec, plan_archive

SPEC = SoundscapeSpec(num_sites=2, num_days=3, recordings_per_day=2, recording_s=6.0, density_per_min=60.0)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "archive"
    write_archive(SPEC, folder)
    return folder


def test_audio_tables_and_metadata_are_all_there(archive):
    plans = plan_archive(SPEC)
    recordings = rows_of(archive / "recordings.csv")
    assert [row["path"] for row in recordings] == [plan.path for plan in plans]
    assert {(row["role"], row["is_annotated"]) for row in recordings} == {
        ("labelled", "true"),
        ("temporal_ood", "true"),
        ("site_ood", "true"),
        ("pool", "false"),
    }
    for plan in plans:
        info = soundfile.info(archive / plan.path)
        assert (info.frames, info.samplerate, info.channels) == (96_000, 16_000, 1)
    assert [row["site"] for row in rows_of(archive / "sites.csv")] == ["SITE01", "SITE02"]
    assert not list(archive.rglob(".*"))


def test_raven_tables_read_back_as_the_truth_of_the_annotated_recordings(archive):
    annotated = {p.path for p in plan_archive(SPEC) if p.is_annotated}
    read = read_annotations(archive / "annotations", root=archive)
    assert read.annotated_paths == annotated
    assert not read.unresolved and not read.problems
    truth = [row for row in rows_of(archive / "truth.csv") if row["path"] in annotated]
    assert len(truth) == len(read.annotations) > 0
    marked = sorted((a.path, a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label) for a in read.annotations)
    known = sorted(
        (r["path"], *(float(r[k]) for k in ("begin_s", "end_s", "low_hz", "high_hz")), r["label"])
        for r in truth
    )
    for one, other in zip(marked, known, strict=True):
        assert one[0] == other[0] and one[5] == other[5]
        assert one[1:5] == pytest.approx(other[1:5], abs=1e-3)


def test_tables_are_found_from_the_audio_folder_too(archive):
    read = read_annotations(archive / "annotations", root=archive / "audio")
    assert not read.unresolved
    assert all(path.startswith("SITE") for path in read.annotated_paths)


def test_running_again_skips_everything_and_changes_nothing(archive):
    before = contents(archive)
    summary = write_archive(SPEC, archive)
    assert (summary.num_written, summary.num_skipped) == (0, 12)
    assert contents(archive) == before


def test_a_lost_and_a_cut_recording_are_written_again_with_the_same_bytes(archive):
    before = contents(archive)
    first, second = (archive / plan.path for plan in plan_archive(SPEC)[1:3])
    first.unlink()
    second.write_bytes(second.read_bytes()[:1000])
    summary = write_archive(SPEC, archive)
    assert summary.num_written == 2
    assert contents(archive) == before


def test_an_interrupted_archive_is_completed_to_the_same_bytes(archive, tmp_path):
    class Stopped(Exception):
        pass

    def stop_after_three(done: int, total: int) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        write_archive(SPEC, tmp_path / "other", stop_after_three)
    assert not (tmp_path / "other" / "truth.csv").exists()
    assert write_archive(SPEC, tmp_path / "other").num_skipped == 3
    assert contents(tmp_path / "other") == contents(archive)


def test_other_settings_in_the_same_folder_are_refused(archive):
    with pytest.raises(DataError, match="other settings"):
        write_archive(replace(SPEC, seed=5), archive)


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match="not empty"):
        write_archive(SPEC, tmp_path)


def test_flac_at_several_rates_holds_what_was_planned(tmp_path):
    spec = replace(SPEC, audio_format="flac", sample_rates_hz=(24_000, 48_000), recordings_per_day=1)
    write_archive(spec, tmp_path / "a")
    assert write_archive(spec, tmp_path / "a").num_written == 0
    rates = {
        plan.site_name: soundfile.info(tmp_path / "a" / plan.path).samplerate for plan in plan_archive(spec)
    }
    assert rates == {"SITE01": 24_000, "SITE02": 48_000}


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_as_one(archive, tmp_path):
    write_archive(SPEC, tmp_path / "other", num_processes=2)
    assert contents(tmp_path / "other") == contents(archive)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> tuple[Path, list[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("damaged") / "archive"
    spec = replace(SPEC, num_days=2, recordings_per_day=4, recording_s=4.0, density_per_min=0.0)
    write_archive(spec, folder)
    return folder, damage_archive(folder, share=0.95, seed=3)


def test_every_kind_of_damage_is_done_once_and_recorded(damaged):
    folder, done = damaged
    assert len(done) == len(DAMAGE_KINDS) == 15
    assert {kind for _, kind in done} == set(DAMAGE_KINDS)
    assert [(row["path"], row["kind"]) for row in rows_of(folder / "damaged.csv")] == done
    assert damage_archive(folder, share=0.5, seed=9) == done  # a second call changes nothing


SALVAGEABLE_KINDS = {
    "truncated",
    "data_size_zero",
    "data_size_unknown",
    "zero_tail",
    "nan_samples",
    "flac_flip",
}


def test_readers_find_the_reason_of_every_kind_of_damage(damaged):
    folder, done = damaged
    for path, kind in done:
        try:
            with open_recording(folder / path) as reading:
                for _ in reading.blocks():
                    pass
                assert reading.salvage is not None, kind
                assert kind in SALVAGEABLE_KINDS
                assert reading.salvage.reason == REASON_OF_KIND[kind]
        except UnreadableRecording as error:
            assert kind not in SALVAGEABLE_KINDS
            assert error.reason == REASON_OF_KIND[kind]


def test_damaged_recordings_are_not_repaired_by_running_again(damaged):
    folder, _ = damaged
    spec = replace(SPEC, num_days=2, recordings_per_day=4, recording_s=4.0, density_per_min=0.0)
    assert write_archive(spec, folder).num_written == 0


def test_damage_that_was_interrupted_is_done_by_the_same_command(damaged, tmp_path, monkeypatch):
    folder, done = damaged
    spec = replace(SPEC, num_days=2, recordings_per_day=4, recording_s=4.0, density_per_min=0.0)
    write_archive(spec, tmp_path / "again")
    damage_file, count = damage.damage_file, iter(range(100))

    def interrupted(*args):
        if next(count) == 12:
            raise KeyboardInterrupt
        damage_file(*args)

    monkeypatch.setattr(damage, "damage_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        damage_archive(tmp_path / "again", share=0.95, seed=3)
    monkeypatch.undo()
    write_archive(spec, tmp_path / "again")
    assert damage_archive(tmp_path / "again", share=0.95, seed=3) == done
    assert contents(tmp_path / "again") == contents(folder)


def test_no_share_damages_nothing(archive):
    before = contents(archive)
    assert damage_archive(archive, share=0.0, seed=0) == []
    (archive / "damaged.csv").unlink(missing_ok=True)
    assert contents(archive) == before
