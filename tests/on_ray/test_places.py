"""Places named by a user stay the same places in every process."""

from pathlib import Path

from mast_ray.on_ray.train import full_url


def test_a_relative_place_is_made_absolute_before_workers_see_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert full_url("demo/prepared") == str(Path(tmp_path) / "demo" / "prepared")
    assert full_url("s3://bucket/a/b") == "s3://bucket/a/b"
    assert full_url("") == ""
