"""Twelve broken set-ups, twelve right messages; and a healthy one."""

import http.server
import importlib.metadata
import sys
import threading
import time
from email.utils import formatdate

import pytest
from s3_server import free_port

from mast_ray.config.tree import StorageConfig
from mast_ray.stages.doctor import (
    NEEDED_FOR,
    PACKAGES,
    Facts,
    StorageFacts,
    _skew,
    _status_without_token,
    diagnose,
    gather_facts,
)
from mast_ray.verbs.main import main

VERSIONS = dict.fromkeys((*PACKAGES, *NEEDED_FOR), "2.60.0")
HEALTHY = {
    "python": (3, 12), "versions": VERSIONS, "torch_cuda": "13.0", "gpu_names": ("A100",), "auth_mode": "token", "has_token": True,
}  # fmt: skip

BROKEN = [
    ({"python": (3, 9)}, "python", "3.11, 3.12 or 3.13"),
    ({"versions": VERSIONS | {"timm": ""}}, "packages", "make setup"),
    ({"versions": VERSIONS | {"torchaudio": "2.10.0"}}, "torch", "constraints.txt"),
    ({"torch_error": "libcudart.so.13: cannot open shared object file"}, "torch", "constraints.txt"),
    ({"versions": VERSIONS | {"ray": "2.40.0"}}, "ray", "ray 2.60"),
    ({"gpu_names": (), "has_nvidia_driver": True, "torch_cuda": None}, "gpu", "reinstall torch"),
    ({"gpu_names": (), "has_nvidia_driver": True}, "gpu", "update the driver"),
    ({"has_token": False}, "token", "get-auth-token --generate"),
    ({"dashboard_status": 200, "dashboard_is_remote": True}, "dashboard", "RAY_AUTH_MODE=token"),
    ({"cluster_address": "http://x", "cluster_error": "refused"}, "cluster", "--address"),
    ({"free_bytes": 10**9}, "disk", "free some"),
    ({"is_writable": False}, "disk", "--folder"),
    ({"storage": StorageFacts("s3://b", "Access denied")}, "storage", "credentials"),
    ({"storage": StorageFacts("/media/card", "Read-only file system")}, "storage", "choose a folder"),
    ({"storage": StorageFacts("s3://b", skew_s=3600.0)}, "clock", "timedatectl"),
]


def test_a_healthy_machine_has_no_finding_to_act_on():
    assert {finding.status for finding in diagnose(Facts(**HEALTHY))} == {"ok"}


@pytest.mark.parametrize(("change", "name", "remedy"), BROKEN)
def test_a_broken_set_up_fails_in_its_own_check_with_its_remedy(change, name, remedy):
    failed = [finding for finding in diagnose(Facts(**(HEALTHY | change))) if finding.status == "fail"]
    assert [finding.name for finding in failed] == [name]
    assert remedy in failed[0].remedy


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"token_permissions": 0o644}, "token"),
        ({"versions": VERSIONS | {"deepspeed": ""}}, "deepspeed"),
        ({"versions": VERSIONS | {"s3fs": ""}}, "s3fs"),
        ({"storage": StorageFacts("s3://b", has_conditional_put=False)}, "conditional put"),
    ],
)
def test_what_is_risky_but_works_is_a_warning(change, name):
    findings = diagnose(Facts(**(HEALTHY | change)))
    assert [finding.name for finding in findings if finding.status == "warn"] == [name]


def test_facts_of_this_machine_are_gathered_and_a_local_folder_can_be_tried(tmp_path):
    facts = gather_facts(str(tmp_path), str(tmp_path / "store"), StorageConfig(), "", "")
    assert facts.is_writable and facts.free_bytes > 0
    assert facts.storage is not None and facts.storage.error == ""
    assert facts.versions["ray"] != ""


@pytest.mark.parametrize("name", ["torch", "ray", "soundfile"])
def test_a_package_that_is_missing_is_told_by_the_verb_itself(name, monkeypatch, capsys):
    def version(package):
        if package == name:
            raise importlib.metadata.PackageNotFoundError(package)
        return "2.60.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "mast_ray.on_ray.doctor", raising=False)
    assert (
        main(["doctor", "--dashboard", "", "--address", "http://127.0.0.1:1" if name == "ray" else ""]) == 2
    )
    assert f"missing: {name}" in capsys.readouterr().out


def test_a_store_that_does_not_answer_is_told_in_less_than_twenty_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setattr("mast_ray.stages.doctor.STORAGE_S", 1.0)
    nobody = StorageConfig(endpoint_url=f"http://127.0.0.1:{free_port()}")
    started = time.monotonic()
    facts = gather_facts(str(tmp_path), "s3://bucket/x", nobody, "", "")
    assert facts.storage is not None and "EndpointConnectionError" in facts.storage.error
    assert time.monotonic() - started < 20


def test_no_key_in_an_address_is_printed(capsys):
    assert main(["doctor", "--dashboard", "", "--storage", "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUt@field/x"]) == 2
    said = "".join(capsys.readouterr())
    assert "FAIL  storage" in said and "AKIA" not in said and "wJalrXUt" not in said


@pytest.mark.parametrize("dashboard", ["http://", "http://[::1", "::", "ftp://127.0.0.1"])
def test_a_dashboard_that_is_no_address_is_not_taken_for_a_closed_one(dashboard, capsys):
    assert main(["doctor", "--dashboard", dashboard]) == 2
    assert "is no address" in capsys.readouterr().err


def test_what_answers_and_is_no_dashboard_is_said():
    findings = diagnose(Facts(**(HEALTHY | {"dashboard_status": 404})))
    assert [finding.name for finding in findings if finding.status == "warn"] == ["dashboard"]


@pytest.mark.parametrize("status", [200, 401])
def test_an_open_dashboard_is_told_from_one_that_asks_for_a_token(status):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for written in ("http://127.0.0.1", "127.0.0.1", "localhost"):
            assert _status_without_token(f"{written}:{server.server_port}") == status
        server.shutdown()
    assert _status_without_token(f"http://127.0.0.1:{server.server_port}") is None


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_the_clock_is_that_of_the_store_that_the_environment_names(name, monkeypatch):
    class AnHourAgo(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response_only(200)
            self.send_header("Date", formatdate(time.time() - 3600, usegmt=True))
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AnHourAgo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        assert _skew("") == pytest.approx(3600, abs=60)
        server.shutdown()
