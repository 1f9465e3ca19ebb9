"""What is wrong with an s3:// set-up before any store is asked: no server is needed."""

import pytest

from mast_ray.config.errors import DataError
from mast_ray.storage.storage import open_storage

pytest.importorskip("s3fs")


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "http://"])
def test_an_endpoint_of_the_environment_without_its_scheme_is_refused_with_an_example(address, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with pytest.raises(DataError, match=r"(?s)InvalidEndpoint.*AWS_ENDPOINT_URL.*http://127\.0\.0\.1") as refused:
        list(open_storage("s3://archive/x").list())
    assert len(str(refused.value).splitlines()) == 2
