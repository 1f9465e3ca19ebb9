"""When Ray is started, joined and left: one policy for every job.

Inside a cluster or a submitted job (RAY_ADDRESS) the running one is joined; otherwise a small local one is
started and shut down again. What was running before stays running.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import ray
import ray.data

import mast_ray
from mast_ray.config.chatter import chatter_is_apart, keep
from mast_ray.config.errors import ConfigError, TemporaryError
from mast_ray.config.signals import interruptible
from mast_ray.on_ray.head_watch import last_words, silence_of, watched_head
from mast_ray.on_ray.warm_workers import warm_workers
from mast_ray.storage.spread import Resources

log = logging.getLogger("mast.runner")
QUIET = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # worker prints would appear twice
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # our own line says hours of audio
}


# Ray ends idle processes beyond one per core, and counts its own actors with them: on few cores the workers of one stage,
# with their libraries imported, were gone when a training had started its eight, and the next stage imported all again.
KEPT_WORKERS, OTHER_PROCESSES = "RAY_num_workers_soft_limit", 16
TOKENS = "ray._private.authentication.authentication_token_setup"
ANSWERS_WITHIN_S = 10.0
LEAST_FREE_BYTES = 100 << 20
SLOW_START = "timed out during startup"  # in Ray's words
CHATTER = re.compile(
    r"PlacementGroupCleaner|Ray Train Controller actor state|Reporting training result|Requesting resources: |worker group of size"
    r"|process group for: env://|world_rank=|socket\.cpp|ray::|^:(actor|task|job)_|Token authentication|Moving model to device"
    r"|Dataset dataset_\w+ execution finished|Progress bars disabled"
    r"|mpg123|Illegal Audio-MPEG-Header|OMP_NUM_THREADS|gpuGetDeviceCount|Train context|\[FailurePolicy\] RETRY|find_unused_parameters=True"
)


_is_own = False  # the Ray this process is in was started by it, on this machine alone


@contextmanager
def ray_session(num_cpus: int | None = None) -> Iterator[None]:
    """Ray for the length of a block; SIGTERM ends it like Ctrl-C does."""
    if ray.is_initialized():
        with interruptible():
            yield
        return
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    # Ray's C++ lines about restarts and signals: what failed is said in Python
    if not os.environ.get("MAST_DEBUG"):
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = os.environ.get("RAY_ADDRESS")
    if address:
        refuse_silence(address)
    else:
        refuse_full_folder()
        _let_workers_import_us()
        os.environ.setdefault(KEPT_WORKERS, str((num_cpus or os.cpu_count() or 1) + OTHER_PROCESSES))
    options: dict[str, Any] = (
        {"address": address}
        if address
        # "local", or Ray would join whatever cluster somebody has started on this machine
        else {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
    )
    global _is_own
    is_quiet = not os.environ.get("MAST_DEBUG")
    if is_quiet:
        logging.getLogger(TOKENS).addFilter(_is_no_good_news)  # the same one is added once
    with nullcontext() if address else warm_workers():
        with last_words(), _without_stderr() if is_quiet else nullcontext():
            _start(options)
        _is_own = not address
        if is_quiet:
            _show_our_lines_only()
        with interruptible():  # Ray's start has set handlers of its own
            try:
                with watched_head(ray.get_runtime_context().gcs_address, _raylet_ended):
                    yield
            finally:
                _is_own = False
                ray.shutdown()


def _is_no_good_news(record: logging.LogRecord) -> bool:
    """That a cluster asks for tokens is as it should be, and no warning; that it does not is one."""
    return "is enabled for this Ray cluster" not in record.getMessage()


def _start(options: Mapping[str, Any], is_again: bool = False) -> None:
    """A Ray whose processes die or starve on the way up raises a bare Exception; on a busy machine the second start is quicker."""
    try:
        ray.init(log_to_driver=True, logging_level=logging.ERROR, configure_logging=False, **options)
    except Exception as error:
        keep(repr(error))
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        with suppress(Exception):  # whatever of it is up
            ray.shutdown()
        if SLOW_START in said and not is_again:
            return _start(options, is_again=True)
        raise TemporaryError(
            f"Ray could not be started: {said[:300]}\n"
            "run the same command again; small archives can do without (--runner here), and `mast doctor` looks closer"
        ) from error


def _raylet_ended() -> bool:
    """Whether the raylet that this process has started is gone."""
    node = getattr(
        ray._private.worker, "_global_node", None
    )  # a private door of Ray: without it Ray's own word counts
    started = getattr(node, "all_processes", {}).get("raylet", ())
    return any(one.process.poll() is not None for one in list(started))


def cluster_resources() -> Resources:
    """Of the running cluster. Cores of machines without a GPU feed none: a worker on a GPU that asked for its share of them
    too would fit on no machine.
    """
    found = ray.cluster_resources()
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    shares = [one["CPU"] / one["GPU"] for one in machines if one.get("GPU") and one.get("CPU")]
    return Resources(
        found.get("CPU", 1.0), found.get("GPU", 0.0), cores_per_gpu=min(shares) if shares else None
    )


def refuse_more_than_there_is(num_workers: int, cpus_each: float, gpus_each: float) -> None:
    """A cluster may grow until all workers fit; Ray on this machine alone never does, and would wait for ever, in silence."""
    found = cluster_resources()
    if num_workers * cpus_each <= found.num_cpus and num_workers * gpus_each <= found.num_gpus:
        return
    there = f"{found.num_gpus:g} GPUs and {found.num_cpus:g} cores"
    wanted = (
        f"{num_workers} workers with {f'{gpus_each:g} GPU and ' if gpus_each else ''}{cpus_each:g} cores each"
    )
    if not _is_own:
        log.warning("%s are asked for, the cluster has %s now: waiting until it has grown", wanted, there)
        return
    if gpus_each and not found.num_gpus:
        raise ConfigError(
            "cluster.use_gpu=yes, but this machine has no GPU, and Ray would wait for one for ever:\n"
            "leave it out to work on the CPU, or set RAY_ADDRESS to a cluster that has some"
        )
    fit = found.num_cpus // cpus_each
    fit = int(min(fit, found.num_gpus // gpus_each) if gpus_each else fit)
    remedy = f"cluster.num_workers={fit}" if fit else f"cluster.cpus_per_worker={found.num_cpus:g}"
    raise ConfigError(
        f"{wanted} are asked for, this machine has {there}, and Ray would wait for more for ever:\n"
        f"use --set {remedy}, or set RAY_ADDRESS to a cluster that has more"
    )


def refuse_silence(address: str) -> None:
    """A cluster that does not answer is named at once: Ray itself would try for two minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdigit():  # auto, local, or whatever else Ray may know
        return
    error = silence_of(f"{host}:{port}", ANSWERS_WITHIN_S)
    if error is not None:
        raise TemporaryError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}):\n"
            "start it (`mast doctor` looks closer), or unset RAY_ADDRESS to work on this machine alone"
        ) from error


def refuse_full_folder() -> None:
    """Ray on a full temporary folder tries for ever to write its logs and sockets, and says nothing."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        raise TemporaryError(
            f"Ray's temporary folder {folder} has less than {LEAST_FREE_BYTES >> 20} MiB left:\n"
            "free some, or set RAY_TMPDIR to a folder with room, and run the same command again"
        )


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Ray's start writes about its own settings past Python; what fails is
    raised. MAST_DEBUG=1 shows it all.
    """
    sys.stderr.flush()
    if chatter_is_apart():
        yield
        return
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _show_our_lines_only() -> None:
    """What workers print is shown without Ray's own chatter and prefixes; MAST_DEBUG=1 shows everything."""
    try:
        from ray._private import worker
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher
    except ImportError:  # a private door of Ray: without it the chatter stays
        return
    dispatcher.remove_handler("ray_print_logs")
    dispatcher.add_handler("mast_lines", print_our_lines)
    # a page of Ray's own for every process that dies, past the dispatcher
    worker.print_to_stdstream = keep_rays_errors  # type: ignore[assignment]


def keep_rays_errors(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    """Put what Ray tells the driver of processes and machines that died apart: what it means to people, our lines say.
    With --debug it is shown.
    """
    for line in data.get("lines", ()):
        if chatter_is_apart():
            keep(line)
        else:
            print(line, file=sys.stderr, flush=True)


def print_our_lines(data: Mapping[str, Any]) -> None:
    """Print the lines of one worker that are meant for people."""
    # Ray's own processes: a page every five seconds
    if data.get("pid") in (
        "autoscaler",
        "raylet",
        "gcs_server",
    ):
        return
    if str(data.get("actor_name", "")).startswith("PlacementGroupCleaner"):
        return  # asks a dashboard that is not there, harmlessly, every few seconds
    if str(data.get("actor_name", "")).startswith("TrainController"):
        # what it has to say to people, the driver says; the rest is Ray's own trouble
        for line in data.get("lines", ()):
            keep(line)
        return
    stream = sys.stderr if data.get("is_err") else sys.stdout
    for line in data.get("lines", ()):
        if CHATTER.search(line):
            keep(line)
        else:
            print(line, file=stream, flush=True)


def _let_workers_import_us() -> None:
    """Workers of a local cluster inherit this environment; a checkout need not be installed."""
    root = str(Path(mast_ray.__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def quiet_ray_data() -> None:
    """Ray Data without bars and tables on the terminal; failures are ours to report."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_operator_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    logging.getLogger("ray.util.state").setLevel(logging.ERROR)
