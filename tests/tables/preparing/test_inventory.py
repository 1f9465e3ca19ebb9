"""Inventory: what is in an archive is counted right from names and headers alone."""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from noise_files import write_noise

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import field
from mast_ray.recordings.clock_and_site.site_tables import parse_site_table
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.preparing.inventory import inventory_lines, list_archive, take_inventory
from mast_ray.verbs.main import main


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("inventory")
    for day in (1, 2):
        write_noise(root / "S1" / f"S1_2024050{day}_060000.wav", 36, day)
    samples = np.random.default_rng(0).normal(0, 0.1, (48_000 * 18, 2))
    soundfile.write(root / "S1" / "S1_20240503_060000.flac", samples, 48_000)
    (root / "S2").mkdir()
    (root / "S2" / "empty.wav").write_bytes(b"")
    (root / "S2" / "._S2_20240501.wav").write_bytes(b"\x00\x05\x16\x07" + bytes(100))
    (root / "S2" / "page.wav").write_bytes(b"<html><body>404</body></html>" * 10)
    (root / "S2" / "folder.wav").mkdir()
    (root / "S2" / "notes.txt").write_text("x")
    (root / ".Trash").mkdir()
    write_noise(root / ".Trash" / "old.wav", 2, 9)
    return root


def test_everything_that_looks_like_a_recording_is_offered_and_junk_is_not(archive):
    listing = list_archive(open_storage(archive))
    assert [item.path for item in listing.items] == [
        "S1/S1_20240501_060000.wav", "S1/S1_20240502_060000.wav", "S1/S1_20240503_060000.flac",
        "S2/._S2_20240501.wav", "S2/empty.wav", "S2/folder.wav", "S2/page.wav",
    ]  # fmt: skip
    assert listing.num_other_files == 2


def test_sums_are_exact(archive):
    storage = open_storage(archive)
    listing = list_archive(storage)
    found = take_inventory(storage, listing.items, field().audio)
    # bytes weigh the hours: with every header read the sum is exact
    assert found.hours == pytest.approx((36 + 36 + 18) / 3600)
    assert found.faults == {"EMPTY_FILE": 1, "APPLE_DOUBLE": 1, "NOT_AUDIO": 1, "NOT_A_FILE": 1}
    assert found.rates_hz == {16_000: 2, 48_000: 1} and found.channels == {1: 2, 2: 1}
    assert found.sites == {"S1": 3} and len(found.dates) == 3
    assert found.time_flags["zone_unknown"] == 3
    text = "\n".join(inventory_lines(listing, found, 2))
    assert "7 recordings" in text and "audio.timezone" in text and "NOT_AUDIO 1" in text


def test_tables_of_two_bytes_take_twice_the_room(archive):
    storage = open_storage(archive)
    listing = list_archive(storage)
    found = replace(take_inventory(storage, listing.items, field().audio), hours=1000.0)
    sizes = [inventory_lines(listing, found, 2, stored)[-1].split(", ")[1] for stored in ("uint8", "float16")]
    assert sizes == ["46.08 GB of uint8 tables", "92.16 GB of float16 tables"]


def test_a_sample_of_headers_extrapolates_and_says_so(tmp_path):
    for number in range(20):
        write_noise(tmp_path / f"{number}.wav", 5, number)
    storage = open_storage(tmp_path)
    listing = list_archive(storage)
    found = take_inventory(storage, listing.items, field().audio, sample=4)
    assert found.num_probed == 4 and found.hours == pytest.approx(100 / 3600)
    assert "estimated from 4 headers" in inventory_lines(listing, found, 2)[0]


def test_recordings_that_prepare_would_call_too_short_are_counted_as_such(tmp_path):
    write_noise(tmp_path / "click.wav", 0.4, 0)
    write_noise(tmp_path / "song.wav", 4, 1)
    storage = open_storage(tmp_path)
    found = take_inventory(storage, list_archive(storage).items, field().audio)
    assert found.faults == {"TOO_SHORT": 1} and found.rates_hz == {16_000: 1}
    assert "unreadable: TOO_SHORT 1 (audio.min_seconds)" in inventory_lines(list_archive(storage), found, 1)


def test_the_verb_prints_and_writes_json(archive, tmp_path, capsys):
    assert main(["inventory", str(archive), "--json", str(tmp_path / "i.json")]) == 0
    assert "unreadable:" in capsys.readouterr().out
    assert '"num_files": 7' in (tmp_path / "i.json").read_text()
    assert main(["inventory", str(tmp_path / "nowhere")]) == 3


def test_a_folder_that_may_not_be_read_stops_unless_it_is_junk_or_left_out(tmp_path, monkeypatch):
    write_noise(tmp_path / "S1" / "a.wav", 2, 1)
    for name in ("lost+found", "private"):
        (tmp_path / name).mkdir()
    scandir = os.scandir

    def guarded(path):  # a super-user may read everything
        if str(path).endswith(("lost+found", "private")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(DataError, match=r"private may not be read:\n.*--exclude 'private/\*'"):
        list_archive(open_storage(tmp_path))
    listing = list_archive(open_storage(tmp_path), ("private/*",))
    assert [item.path for item in listing.items] == ["S1/a.wav"] and listing.num_other_files == 2


def test_recordings_with_latin1_names_are_prepared_like_all_others(tmp_path):
    archive = tmp_path / "archive"
    write_noise(archive / "a.wav", 6, 1)
    write_noise(archive / "b.flac", 6, 2)
    os.rename(archive / "a.wav", os.fsencode(archive) + b"/Sp\xe4t_20240501_060000.wav")
    os.rename(archive / "b.flac", os.fsencode(archive) + b"/Fr\xfch_20240501_060000.flac")
    inputs = PrepareInputs(str(archive), str(tmp_path / "out"))
    assert prepare(inputs, field(), runner=HERE) == 0
    paths = open_prepared(tmp_path / "out").recordings.column("path").to_pylist()
    assert paths == ["Fr�(fc)h_20240501_060000.flac", "Sp�(e4)t_20240501_060000.wav"]


def test_folders_of_one_name_in_several_places_are_told_unless_a_table_names_the_site(tmp_path):
    """Wald/Süd and Moor/Süd became one site without a word; years and classes above a site make no other of it."""
    paths = ["Wald/Süd/1.wav", "Moor/Süd/2.wav", "2023/Bach/3.wav", "2024/Bach/4.wav", "positive/Bach/5.wav"]
    for number, path in enumerate(paths):
        write_noise(tmp_path / path, 2, number)
    storage = open_storage(tmp_path)
    listing = list_archive(storage)
    found = take_inventory(storage, listing.items, field().audio)
    assert found.sites == {"Süd": 2, "Bach": 3}
    assert found.places == {"Süd": ["Moor/Süd", "Wald/Süd"]}
    told = [line for line in inventory_lines(listing, found, 2) if "taken for one site" in line]
    assert len(told) == 1 and "Moor/Süd and Wald/Süd are taken for one site, Süd" in told[0]
    table = parse_site_table("file,site\nWald/Süd/1.wav,Süd\nMoor/Süd/2.wav,Süd\n")
    assert not take_inventory(storage, listing.items, field().audio, table).places
