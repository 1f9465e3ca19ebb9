"""Where outputs may lie, and small files that are named on the command line."""

import pytest

from mast_ray.config.errors import ConfigError
from mast_ray.storage.outputs import refuse_mixing, remove_folder, remove_leftovers, seal_of
from mast_ray.storage.storage import LocalStorage, open_beside, open_storage


@pytest.mark.parametrize("out", ["archive", "archive/out", "other/../archive/out", "link/out"])
def test_an_output_among_the_recordings_is_refused_however_it_is_spelled(tmp_path, out):
    (tmp_path / "archive").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("archive")
    with pytest.raises(ConfigError, match="inside the archive"):
        refuse_mixing(open_storage(tmp_path / "archive"), open_storage(f"{tmp_path}/{out}"))


def test_outputs_beside_the_archive_are_welcome(tmp_path):
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "elsewhere").symlink_to(tmp_path)
    for out in ("archive2", "out", "archive/elsewhere/out"):
        refuse_mixing(open_storage(tmp_path / "archive"), open_storage(tmp_path / out))


@pytest.mark.parametrize("archive", ["recordings", "detections/2023"])
def test_an_archive_where_a_stage_would_write_is_refused(tmp_path, archive):
    """`mast detect recordings --out .` deleted the recordings."""
    (tmp_path / archive).mkdir(parents=True)
    with pytest.raises(ConfigError, match="choose another --out"):
        refuse_mixing(open_storage(tmp_path / archive), open_storage(tmp_path), ("detections", "recordings"))


def test_the_folder_of_a_run_is_no_output_of_a_stage(tmp_path):
    """`mast detect ... --out listened` deleted listened/detections."""
    (tmp_path / "listened/detections").mkdir(parents=True)
    (tmp_path / "listened/detections/manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="listened/detections to go on with that one"):
        refuse_mixing(open_storage(tmp_path / "a"), open_storage(tmp_path / "listened"), ("detections",))


def test_only_what_attempts_wrote_is_ever_deleted_or_sealed(tmp_path):
    kept, dead = (
        "detections/0123456789ab-00112233aabb.parquet",
        "detections/site=A/0123456789ab-ffeeddccbbaa.arrow",
    )
    own = ["detections/notes.txt", "detections/x.wav", "detections/a.parquet", ".tmp-mine"]
    for name in (kept, dead, *own, ".tmp-0123456789abcdef"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    stage = open_storage(tmp_path)
    assert remove_leftovers(stage, [kept], ("detections",)) == 1
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {kept, *own}
    assert seal_of(stage, ("detections",), ())["files"] == 1


def test_what_another_thread_is_writing_is_no_leftover(tmp_path):
    """`mast detect` ended with "the lease ... could not be renewed: No such file": its own sign of life was swept away."""
    stage = open_storage(tmp_path)
    with stage.scratch_file() as path:
        path.write_bytes(b"released")
        remove_leftovers(stage, [], ())
        stage.publish(path, "lease/000001.beat")
    assert stage.read_bytes("lease/000001.beat") == b"released"
    path.write_bytes(b"of a run that was killed")
    remove_leftovers(stage, [], ())
    assert not path.exists()


def test_a_file_is_its_folder_and_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {uri: open_beside(uri) for uri in ("sites.csv", "/sites.csv", "/a/sites.csv", "s3://b/sites.csv")}
    assert {uri: (storage.url, name) for uri, (storage, name) in found.items()} == {
        "sites.csv": (str(tmp_path), "sites.csv"),
        "/sites.csv": ("/", "sites.csv"),  # as mounted into a container, not of the working folder
        "/a/sites.csv": ("/a", "sites.csv"),
        "s3://b/sites.csv": ("s3://b", "sites.csv"),
    }


def test_a_folder_goes_with_its_manifests_first_and_leaves_no_empty_ones(tmp_path, monkeypatch):
    stage = open_storage(tmp_path / "out")
    keys = [
        "a/labels/x.parquet",
        "a/commit/1.json",
        "a/attempts/1/0.json",
        "a/manifest.json",
        "b/manifest.json",
        "c.json",
    ]
    for key in keys:
        stage.write_atomic(f"work/{key}", b"1")
    stage.write_atomic("kept.json", b"1")
    order, delete = [], LocalStorage.delete
    monkeypatch.setattr(LocalStorage, "delete", lambda self, key: order.append(key) or delete(self, key))
    remove_folder(stage.at("work"))
    assert order[:4] == ["a/manifest.json", "b/manifest.json", "a/attempts/1/0.json", "a/commit/1.json"]
    assert sorted(order) == sorted(keys)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept.json"]
    remove_folder(stage.at("work"))  # nothing is there
