"""Folders as storage: whole objects, exclusive creation, sorted listings."""

import errno
import io
import os
import pickle
import subprocess
import sys
import threading

import pytest

from mast_ray.config.errors import DataError
from mast_ray.storage.storage import map_keys, open_storage


def test_an_object_appears_whole_or_not_at_all(tmp_path):
    storage = open_storage(tmp_path)
    with pytest.raises(RuntimeError), storage.scratch_file() as path:
        path.write_bytes(b"half")
        raise RuntimeError("cut short")
    assert list(storage.list()) == [] and list(tmp_path.iterdir()) == []
    storage.write_atomic("a/b.bin", b"whole")
    assert storage.read_bytes("a/b.bin") == b"whole"


def test_of_many_creators_one_wins_and_its_content_stays(tmp_path):
    storage = open_storage(tmp_path)
    barrier, wins = threading.Barrier(10), []

    def create(number):
        barrier.wait()
        if storage.put_if_absent("lease/1.json", str(number).encode()):
            wins.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1 and storage.read_bytes("lease/1.json") == str(wins[0]).encode()


def refuse_links(monkeypatch, code):
    """As FAT and exFAT do."""

    def link(source, target, **options):
        raise OSError(code, os.strerror(code), str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_on_a_disk_without_hard_links_one_creator_wins_too_and_its_content_is_whole(
    tmp_path, monkeypatch, code
):
    refuse_links(monkeypatch, code)
    storage = open_storage(tmp_path)
    barrier, wins, contents = threading.Barrier(2), [], [letter * 100_000 for letter in (b"a", b"b")]

    def create(content, turn):
        barrier.wait()
        if storage.put_if_absent(f"lease/{turn}.json", content):
            wins.append(content)

    for turn in range(20):
        threads = [threading.Thread(target=create, args=(content, turn)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == turn + 1 and storage.read_bytes(f"lease/{turn}.json") == wins[-1]
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_name_that_was_taken_is_free_again_when_its_content_cannot_follow(tmp_path, monkeypatch):
    refuse_links(monkeypatch, errno.EPERM)
    storage = open_storage(tmp_path)

    def fail(source, target):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "replace", fail)
        storage.put_if_absent("lease/1.json", b"whole")
    assert storage.put_if_absent("lease/1.json", b"whole")


def test_another_fault_of_a_link_is_not_taken_for_a_disk_without_links(tmp_path, monkeypatch):
    refuse_links(monkeypatch, errno.EACCES)
    with pytest.raises(PermissionError):
        open_storage(tmp_path).put_if_absent("lease/1.json", b"whole")
    assert not (tmp_path / "lease/1.json").exists()


def test_listings_are_sorted_skip_unfinished_files_and_report_size_and_version(tmp_path):
    storage = open_storage(tmp_path)
    for name in ("b/2.txt", "a.txt", "b/1.txt"):
        storage.write_atomic(name, name.encode())
    (tmp_path / ".tmp-123").write_bytes(b"x")
    entries = list(storage.list())
    assert [(entry.key, entry.num_bytes) for entry in entries] == [
        ("a.txt", 5),
        ("b/1.txt", 7),
        ("b/2.txt", 7),
    ]
    before = storage.stat("a.txt")
    storage.write_atomic("a.txt", b"other")
    assert storage.stat("a.txt").version != before.version


def test_a_folder_named_like_a_recording_can_be_listed(tmp_path):
    (tmp_path / "x.wav").mkdir()
    (tmp_path / "x.wav" / "inside.txt").write_text("y")
    keys = [
        entry.key for entry in open_storage(tmp_path).list(folders_named=lambda key: key.endswith(".wav"))
    ]
    assert keys == ["x.wav", "x.wav/inside.txt"]


def test_an_absent_folder_lists_nothing_and_an_absent_object_is_none(tmp_path):
    storage = open_storage(tmp_path / "nowhere")
    assert list(storage.list("deep")) == [] and storage.stat("x") is None
    storage.delete("x")


def test_reading_is_seekable(tmp_path):
    storage = open_storage(tmp_path)
    storage.write_atomic("x", bytes(range(100)))
    with storage.open_read("x") as file:
        file.seek(-10, io.SEEK_END)
        assert file.read() == bytes(range(90, 100))


def test_a_storage_travels_to_another_process(tmp_path):
    storage = open_storage(tmp_path).at("sub")
    assert pickle.loads(pickle.dumps(storage)) == storage
    remote = open_storage("s3://bucket/some/prefix")
    assert pickle.loads(pickle.dumps(remote)).url == "s3://bucket/some/prefix"


@pytest.mark.parametrize("uri", ["gs://bucket/x", "s3://", "http://host/x"])
def test_other_stores_are_refused(uri):
    with pytest.raises(DataError):
        open_storage(uri)


def test_many_small_objects_are_read_in_order(tmp_path):
    storage = open_storage(tmp_path)
    keys = [f"{n:03d}" for n in range(50)]
    for key in keys:
        storage.write_atomic(key, key.encode())
    assert map_keys(storage.read_bytes, keys) == [key.encode() for key in keys]


def test_names_that_are_not_utf8_are_listed_as_text_and_read(tmp_path):
    folder = os.fsencode(tmp_path) + b"/M\xe4rz"
    os.mkdir(folder)
    for name in (b"Sp\xe4t \xff.wav", "Spät �.wav".encode()):
        with open(folder + b"/" + name, "wb") as file:
            file.write(name)
    storage = open_storage(tmp_path)
    keys = [entry.key for entry in storage.list()]
    assert sorted(keys) == ["M�(e4)rz/Spät �.wav", "M�(e4)rz/Sp�(e4)t �(ff).wav"]
    assert "".join(keys).encode("utf-8")  # fit for tables
    assert all(b"Sp" in storage.read_bytes(key) and storage.stat(key) for key in keys)


def test_a_link_to_a_folder_above_itself_ends_no_listing(tmp_path, caplog):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.wav").write_bytes(b"x")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "self").symlink_to(".")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "y.wav").write_bytes(b"y")
    (tmp_path / "a" / "c").symlink_to(tmp_path / "c")  # no circle: followed
    keys = [entry.key for entry in open_storage(tmp_path).list()]
    assert keys == ["a/b/x.wav", "a/c/y.wav", "c/y.wav"]
    assert "leads back" in caplog.text


def test_local_paths_need_no_s3fs_and_an_s3_address_says_what_to_install(tmp_path):
    program = """
import sys
for name in ("s3fs", "botocore", "aiobotocore", "fsspec"):
    sys.modules[name] = None  # as on a machine without it
from mast_ray.config.errors import DataError
from mast_ray.storage.storage import open_storage
storage = open_storage(sys.argv[1])
storage.write_atomic("x", b"1")
assert storage.read_bytes("x") == b"1"
try:
    open_storage("s3://bucket/x").read_bytes("y")
except DataError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.strip() == "s3:// addresses need the package s3fs: pip install s3fs", done.stderr
