"""Checks of a machine or cluster before work is trusted to it: each gives a
line, and a remedy where it fails.

Facts are gathered first (`gather_facts`), judged after (`diagnose`): the judgement is a pure function, so
every broken set-up can be tested without breaking a machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from mast_ray.config.errors import ConfigError, MastError
from mast_ray.config.tree import StorageConfig

Status = Literal["ok", "warn", "fail"]
PACKAGES = ("torch", "torchaudio", "torchvision", "timm", "ray", "pyarrow", "soundfile")
NEEDED_FOR = {
    "deepspeed": "cluster.engine=deepspeed",
    "s3fs": "s3:// addresses",
}  # nothing else asks for them
SAFE_RAY = (2, 54)
LEAST_FREE_BYTES = 5_000_000_000
MOST_SKEW_S = 30.0
STORAGE_S = 10.0  # for a store that does not answer: a job has more patience


@dataclass(frozen=True)
class Finding:
    """One check: what was seen, and what to do when it is not well."""

    name: str
    status: Status
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class StorageFacts:
    """What a trial of reading, writing and conditional writing showed; errors as text."""

    url: str
    error: str = ""
    has_conditional_put: bool = True
    skew_s: float | None = None


@dataclass(frozen=True)
class Facts:
    """Everything the checks look at."""

    python: tuple[int, int] = (3, 11)
    versions: dict[str, str] = field(default_factory=dict)  # "" for a missing package
    torch_error: str = ""  # why it cannot be loaded, although it is there
    torch_cuda: str | None = None
    gpu_names: tuple[str, ...] = ()
    has_nvidia_driver: bool = False
    auth_mode: str = ""
    has_token: bool = False
    token_permissions: int = 0o600
    dashboard_status: int | None = None  # HTTP status without a token; None: nothing answers; 0: not HTTP
    dashboard_is_remote: bool = False
    cluster_address: str = ""
    cluster_error: str = ""
    free_bytes: int = 10**12
    is_writable: bool = True
    folder: str = "."
    storage: StorageFacts | None = None


def gather_facts(folder: str, storage_url: str, knobs: StorageConfig, dashboard: str, address: str) -> Facts:
    """Look at this machine, the cluster named by `address` (if any) and one storage location (if any)."""
    versions = {name: _version(name) for name in (*PACKAGES, *NEEDED_FOR)}
    torch_error, torch_cuda, names = _torch() if versions["torch"] else ("", None, [])
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    has_file = token.is_file()
    free, writable = _disk(folder)
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor),
        versions=versions,
        torch_error=torch_error,
        torch_cuda=torch_cuda,
        gpu_names=tuple(names),
        has_nvidia_driver=Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi")),
        auth_mode=os.environ.get("RAY_AUTH_MODE", ""),
        has_token=bool(os.environ.get("RAY_AUTH_TOKEN")) or has_file,
        token_permissions=token.stat().st_mode & 0o777 if has_file else 0o600,
        dashboard_status=_status_without_token(dashboard) if dashboard else None,
        dashboard_is_remote=bool(dashboard) and "127.0.0.1" not in dashboard and "localhost" not in dashboard,
        cluster_address=address,
        cluster_error=_cluster_error(address) if address else "",
        free_bytes=free,
        is_writable=writable,
        folder=folder,
        storage=_try_storage(storage_url, knobs) if storage_url else None,
    )


def diagnose(facts: Facts) -> list[Finding]:
    """Judge the facts: one finding per check."""
    findings = [
        _python(facts),
        *_packages(facts),
        _gpu(facts),
        _auth(facts),
        _dashboard(facts),
        _disk_space(facts),
    ]
    if facts.cluster_address:
        findings.append(
            Finding("cluster", "fail", f"{facts.cluster_address}: {facts.cluster_error}",
                    "start it (`ray up cluster.yaml`), forward its ports, or correct --address")
            if facts.cluster_error
            else Finding("cluster", "ok", f"{facts.cluster_address} answers")
        )  # fmt: skip
    if facts.storage is not None:
        findings += _storage(facts.storage)
    return findings


def _python(facts: Facts) -> Finding:
    seen = ".".join(map(str, facts.python))
    if (3, 11) <= facts.python <= (3, 13):
        return Finding("python", "ok", seen)
    return Finding("python", "fail", seen, "use Python 3.11, 3.12 or 3.13: `make setup PYTHON=python3.12`")


def _packages(facts: Facts) -> list[Finding]:
    missing = [name for name in PACKAGES if not facts.versions.get(name)]
    if missing:
        return [Finding("packages", "fail", f"missing: {', '.join(missing)}", "run `make setup` again")]
    present = {name: version for name, version in facts.versions.items() if version}
    findings = [
        Finding("packages", "ok", ", ".join(f"{name} {version}" for name, version in present.items()))
    ]
    if facts.torch_error:
        findings.append(
            Finding("torch", "fail", f"cannot be loaded: {facts.torch_error}",
                    "install the three torch packages of constraints.txt together")
        )  # fmt: skip
    findings += [
        Finding(name, "warn", f"missing: needed for {use} only", f"pip install -c constraints.txt {name}")
        for name, use in NEEDED_FOR.items()
        if name not in present
    ]
    torch, audio = (facts.versions[n].split("+")[0].split(".")[:2] for n in ("torch", "torchaudio"))
    if torch != audio:
        findings.append(
            Finding("torch", "fail", f"torch {'.'.join(torch)} beside torchaudio {'.'.join(audio)}",
                    "install the three torch packages of constraints.txt together")
        )  # fmt: skip
    ray = tuple(int(part) for part in facts.versions["ray"].split(".")[:2])
    if ray < SAFE_RAY:
        findings.append(
            Finding(
                "ray",
                "fail",
                facts.versions["ray"],
                "this version has open ports without a token: use ray 2.60",
            )
        )
    return findings


def _gpu(facts: Facts) -> Finding:
    if facts.torch_error or not facts.versions.get("torch"):
        return Finding("gpu", "warn", "not looked for: that needs torch", "mend torch first")
    if facts.gpu_names:
        return Finding(
            "gpu", "ok", f"{len(facts.gpu_names)} x {facts.gpu_names[0]} (CUDA {facts.torch_cuda})"
        )
    if facts.has_nvidia_driver and facts.torch_cuda is None:
        return Finding(
            "gpu",
            "fail",
            "a GPU driver is here, but torch is a CPU build",
            "reinstall torch: `make clean setup`",
        )
    if facts.has_nvidia_driver:
        return Finding("gpu", "fail", f"a GPU driver is here, but torch (CUDA {facts.torch_cuda}) cannot use it",
                       "update the driver, or check that the container was started with its GPUs")  # fmt: skip
    return Finding(
        "gpu",
        "warn",
        "none: everything runs on CPU",
        "nothing: the verbs take the small recipe by themselves without one",
    )


def _auth(facts: Facts) -> Finding:
    if facts.auth_mode == "token" and not facts.has_token:
        return Finding("token", "fail", "RAY_AUTH_MODE=token, but there is no token",
                       "make one: `ray get-auth-token --generate`")  # fmt: skip
    if facts.has_token and facts.token_permissions & 0o077:
        return Finding("token", "warn", f"others may read the token file ({facts.token_permissions:o})",
                       "chmod 600 ~/.ray/auth_token")  # fmt: skip
    if facts.auth_mode in ("disabled", "") and not facts.has_token:
        return Finding("token", "warn", "Ray token authentication is off",
                       "for anything beyond this machine: export RAY_AUTH_MODE=token")  # fmt: skip
    return Finding("token", "ok", f"RAY_AUTH_MODE={facts.auth_mode or 'default'}, token present")


def _dashboard(facts: Facts) -> Finding:
    match facts.dashboard_status:
        case None:
            return Finding("dashboard", "ok", "nothing answers without being asked")
        case 200:
            where = "from outside this machine" if facts.dashboard_is_remote else "on this machine"
            return Finding("dashboard", "fail", f"answers without a token {where}: anyone who reaches it can run code",
                           "restart with RAY_AUTH_MODE=token and --dashboard-host=127.0.0.1")  # fmt: skip
        case 401 | 403 as status:
            return Finding("dashboard", "ok", f"asks for a token (HTTP {status})")
        case status:
            seen = f"HTTP {status}" if status else "no HTTP"
            return Finding("dashboard", "warn", f"what answers is no dashboard of Ray ({seen})",
                           "name yours, e.g. --dashboard http://127.0.0.1:8265")  # fmt: skip


def _disk_space(facts: Facts) -> Finding:
    gigabytes = facts.free_bytes / 1e9
    if not facts.is_writable:
        return Finding(
            "disk", "fail", f"{facts.folder} cannot be written to", "choose another folder with --folder"
        )
    if facts.free_bytes < LEAST_FREE_BYTES:
        return Finding(
            "disk",
            "fail",
            f"{gigabytes:.1f} GB free in {facts.folder}",
            "free some: a run needs 5 GB and more",
        )
    return Finding("disk", "ok", f"{gigabytes:.0f} GB free in {facts.folder}")


def _storage(storage: StorageFacts) -> list[Finding]:
    if storage.error:
        remedy = (
            "check bucket, region, endpoint and credentials (`aws sts get-caller-identity`)"
            if "://" in storage.url
            else "choose a folder that can be written to"
        )
        return [Finding("storage", "fail", f"{storage.url}: {storage.error}", remedy)]
    findings = [Finding("storage", "ok", f"{storage.url}: read, write and delete work")]
    if not storage.has_conditional_put:
        findings.append(
            Finding("conditional put", "warn", "this store ignores If-None-Match",
                    "run one driver at a time; commits are made by the driver alone")
        )  # fmt: skip
    if storage.skew_s is not None and abs(storage.skew_s) > MOST_SKEW_S:
        findings.append(
            Finding("clock", "fail", f"this clock is {storage.skew_s:+.0f} s from the store's",
                    "set it (`sudo timedatectl set-ntp true`): signed requests fail beyond 15 minutes")
        )  # fmt: skip
    elif storage.skew_s is not None:
        findings.append(Finding("clock", "ok", f"{storage.skew_s:+.1f} s from the store's"))
    return findings


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _torch() -> tuple[str, str | None, list[str]]:
    """Why torch cannot be loaded ("": it can), its CUDA, and the names of the GPUs that it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:  # a library that it was built with is not here
        return str(error).splitlines()[0][:200], None, []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "", torch.version.cuda, [torch.cuda.get_device_name(i) for i in range(count)]


def _cluster_error(address: str) -> str:
    try:
        from mast_ray.on_ray.doctor import cluster_error
    except ImportError as error:
        return f"Ray cannot be loaded ({error})"
    return cluster_error(address)


def _disk(folder: str) -> tuple[int, bool]:
    path = Path(folder)
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free, os.access(path, os.W_OK)


def _status_without_token(dashboard: str) -> int | None:
    url = dashboard if "://" in dashboard else f"http://{dashboard}"  # as people write it: 127.0.0.1:8265
    try:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(dashboard)
        request = urllib.request.Request(url.rstrip("/") + "/api/jobs/")
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except HTTPException:
        return 0
    except OSError:
        return None
    except ValueError:
        raise ConfigError(
            f"--dashboard {dashboard!r} is no address: write it like http://127.0.0.1:8265"
        ) from None


def _try_storage(url: str, knobs: StorageConfig) -> StorageFacts:
    from mast_ray.storage.storage import open_storage

    key = f".mast-doctor-{os.getpid()}-{time.time_ns()}"
    patience = {
        "io_deadline_s": min(knobs.io_deadline_s, STORAGE_S),
        "request_timeout_s": min(knobs.request_timeout_s, STORAGE_S / 2),
    }
    try:
        storage = open_storage(url, knobs.model_copy(update=patience))
        storage.write_atomic(key, b"mast doctor")
        if storage.read_bytes(key) != b"mast doctor":
            return StorageFacts(url, "what was written is not what is read back")
        conditional = storage.has_conditional_put()
        storage.delete(key)
    except (MastError, OSError) as error:
        return StorageFacts(url, str(error).replace("\n", " "))
    return StorageFacts(url, "", conditional, _skew(knobs.endpoint_url) if url.startswith("s3://") else None)


def _skew(endpoint: str) -> float | None:
    """Seconds that this clock is ahead of the store's, wherever the store is named: in a setting or in the environment."""
    named = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    request = urllib.request.Request(named or "https://s3.amazonaws.com", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
    except OSError:
        return None
    return time.time() - parsedate_to_datetime(date).timestamp() if date else None
