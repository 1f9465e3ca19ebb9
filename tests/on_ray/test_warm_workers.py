"""Workers that are copies of a process with torch in it: what they are handed, and what happens where there is none."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from mast_ray.on_ray import setup_worker, warm_workers

SERVER = """
import socket, sys
from mast_ray.on_ray import worker_server
worker_server.IMPORTED = ("numpy", "colorsys")
worker_server.serve(socket.socket(fileno=int(sys.argv[1])))
"""
WORKER = """
import json, os, sys
import numpy
print(json.dumps({
    "argv": sys.argv, "is_copy": "colorsys" in sys.modules, "variable": os.environ.get("VARIABLE"), "folder": os.getcwd(),
    "pid": os.getpid(), "group": os.getpgid(0), "path": sys.path[0], "drawn": float(numpy.random.random()),
    "threads": os.environ.get("OMP_NUM_THREADS"), "has_ray": "ray" in sys.modules,
}))
"""
RAY_SETUP = """
import sys
print("Ray's own", *sys.argv[1:])
"""


@pytest.fixture
def scripts(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / "default_worker.py").write_text(WORKER, encoding="utf-8")
    (folder / "setup_worker.py").write_text(RAY_SETUP, encoding="utf-8")
    return folder


@pytest.fixture
def server(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVER), str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
        )
    yield path
    process.stdin.close()
    assert process.wait(60) == 0  # it ends with whoever holds its input


def set_up(scripts, path, folder, language="PYTHON", **context):
    words = [
        f"--serialized-runtime-env-context={json.dumps({'py_executable': sys.executable} | context)}",
        f"--language={language}",
        str(scripts / "default_worker.py"),
        "--worker-id=1 2",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, setup_worker.__file__, *words],
        env=environment | {setup_worker.SOCKET: path}, cwd=folder, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_copy_gets_arguments_environment_folder_and_streams(scripts, server, tmp_path):
    first, second = (
        json.loads(set_up(scripts, server, tmp_path, env_vars={"VARIABLE": value})) for value in ("a", "b")
    )
    assert first["argv"] == [str(scripts / "default_worker.py"), "--worker-id=1 2"]
    assert (
        first["is_copy"] and not first["has_ray"]
    )  # copies of one Ray would give their tasks the same names
    assert (first["variable"], second["variable"]) == ("a", "b")
    assert first["folder"] == str(tmp_path) and first["path"] == str(scripts)
    assert first["group"] == first["pid"] != second["pid"]  # Ray ends a lost worker with its group
    assert first["drawn"] != second["drawn"]
    assert first["threads"] is None  # Ray sets it where a user has not


@pytest.mark.parametrize(
    "context",
    [
        {"command_prefix": ["cd elsewhere &&"]},
        {"py_executable": "python-of-another-environment"},
        {"env_vars": {"PATH": "${HOME}/bin"}},
    ],
)
def test_an_environment_of_more_than_variables_is_left_to_ray(scripts, server, tmp_path, context):
    assert set_up(scripts, server, tmp_path, **context).startswith("Ray's own --serialized")


def test_without_a_server_and_for_other_languages_ray_starts_as_ever(scripts, tmp_path):
    assert set_up(scripts, str(tmp_path / "none"), tmp_path).startswith("Ray's own --serialized")
    assert set_up(scripts, "", tmp_path, language="JAVA").startswith("Ray's own --serialized")


def test_a_folder_whose_name_is_too_long_for_a_socket_means_workers_as_ever(scripts, tmp_path, monkeypatch):
    path = str(tmp_path / ("long" * 30))
    monkeypatch.setattr(warm_workers, "_path", path)
    warm_workers.start_server()
    assert warm_workers._server is None
    assert set_up(scripts, path, tmp_path).startswith("Ray's own --serialized")
