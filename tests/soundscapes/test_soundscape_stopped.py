"""A synthetic archive whose making is killed, or finds the disk full: the same command goes on."""

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest
import soundfile
from stopped import Killed

from mast_ray.soundscapes import archive
from mast_ray.soundscapes.archive import write_archive
from mast_ray.soundscapes.render import SoundscapeSpec
from mast_ray.verbs.main import main

SPEC = SoundscapeSpec(num_sites=2, num_days=2, recordings_per_day=1, recording_s=2.0, density_per_min=60.0)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def killed_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """The `number`-th file is written and never takes its name, and nothing is cleared away."""
    count, replace, unlink = 0, os.replace, Path.unlink

    def counted(source, target):
        nonlocal count
        count += 1
        if count >= number:
            raise Killed
        replace(source, target)

    def alive(self, missing_ok=False):
        if count >= number:
            raise Killed
        unlink(self, missing_ok)

    patch.setattr(os, "replace", counted)
    patch.setattr(Path, "unlink", alive)


def test_killed_before_any_file_has_its_name_the_same_archive_is_made(tmp_path, monkeypatch):
    write_archive(SPEC, tmp_path / "whole")
    for number in range(1, 40):
        out = tmp_path / f"out{number}"
        with monkeypatch.context() as patch:
            killed_at(number, patch)
            try:
                write_archive(SPEC, out)
                break
            except Killed:
                pass
        write_archive(SPEC, out)
        assert contents(out) == contents(tmp_path / "whole"), number
    assert number > 8


def test_a_full_disk_is_said_and_the_same_command_goes_on(tmp_path, monkeypatch, capfd):
    """libsndfile says no more than "System error"."""
    out = tmp_path / "out"
    command = [
        "synth",
        "--out",
        str(out),
        "--hours",
        "0.01",
        "--minutes",
        "0.1",
        "--sites",
        "1",
        "--days",
        "1",
    ]
    command += ["--processes", "1"]

    def fails(self, data):
        raise soundfile.LibsndfileError(2)

    with monkeypatch.context() as patch:
        patch.setattr(soundfile.SoundFile, "write", fails)
        patch.setattr(archive.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0))
        assert main(command) == 75
        said = capfd.readouterr().err
        assert "error: no space left on the disk of" in said and "free some and run again" in said
        patch.setattr(archive.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, 10**9))
        assert main(command) == 75 and os.strerror(errno.EIO) in capfd.readouterr().err
    assert main(command) == 0
