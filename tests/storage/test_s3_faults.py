"""What is wrong with an s3:// set-up before any store is asked: no server is needed."""

import errno
import logging
import socket
import tempfile

import pytest

from mast_ray.config.errors import TEMPORARY, DataError, TemporaryError
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.main import _report_os_error

pytest.importorskip("s3fs")


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "http://"])
def test_an_endpoint_of_the_environment_without_its_scheme_is_refused_with_an_example(address, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with pytest.raises(
        DataError, match=r"(?s)InvalidEndpoint.*AWS_ENDPOINT_URL.*http://127\.0\.0\.1"
    ) as refused:
        list(open_storage("s3://archive/x").list())
    assert len(str(refused.value).splitlines()) == 2


def test_where_credentials_come_from_is_not_said_in_every_process(monkeypatch, caplog):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    nobody = StorageConfig(endpoint_url="http://127.0.0.1:9", region="us-east-1", io_deadline_s=0.5)
    with caplog.at_level(logging.INFO), pytest.raises(TemporaryError):
        list(open_storage("s3://archive/x", nobody).list())
    assert "credentials" not in caplog.text


def test_a_full_scratch_folder_is_told_from_a_full_output(capsys):
    with (
        pytest.raises(OSError) as full,
        open_storage("s3://archive/out").scratch_file(),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write says it: without a name
    assert _report_os_error(full.value) == TEMPORARY
    said = capsys.readouterr().err
    assert (
        f"scratch folder {tempfile.gettempdir()} (TMPDIR) on {socket.gethostname()}" in said
        and "output" not in said
    )
