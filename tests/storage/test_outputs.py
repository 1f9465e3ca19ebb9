"""Where outputs may lie, and small files that are named on the command line."""

import pytest

from mast_ray.config.errors import ConfigError
from mast_ray.storage.outputs import refuse_mixing
from mast_ray.storage.storage import open_beside, open_storage


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


def test_a_file_is_its_folder_and_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {uri: open_beside(uri) for uri in ("sites.csv", "/sites.csv", "/a/sites.csv", "s3://b/sites.csv")}
    assert {uri: (storage.url, name) for uri, (storage, name) in found.items()} == {
        "sites.csv": (str(tmp_path), "sites.csv"),
        "/sites.csv": ("/", "sites.csv"),  # as mounted into a container, not of the working folder
        "/a/sites.csv": ("/a", "sites.csv"),
        "s3://b/sites.csv": ("s3://b", "sites.csv"),
    }
