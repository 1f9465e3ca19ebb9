"""One s3fs file system per process and set of settings: made when first asked for, made anew when its credentials
have expired.

s3fs is imported here and only when an `s3://` address is used: local paths work without it. Its own retries are
off for our requests, because only ours (s3.py) know about half bodies, expired credentials and the deadline.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mast_ray.config.errors import DataError
from mast_ray.config.tree import StorageConfig

if TYPE_CHECKING:
    import s3fs


class Connection:
    """File system and moment of the last success, shared by the threads of a process."""

    def __init__(self, settings: StorageConfig) -> None:
        self.settings = settings
        self.lock = threading.Lock()
        self.last_success_s = time.monotonic()
        self._filesystem: s3fs.S3FileSystem | None = None

    def filesystem(self) -> s3fs.S3FileSystem:
        with self.lock:
            if self._filesystem is None:
                self._filesystem = new_filesystem(self.settings, num_attempts=1)
            return self._filesystem

    def forget(self, old: s3fs.S3FileSystem) -> None:
        """The next request starts from freshly looked-up credentials."""
        with self.lock:
            if self._filesystem is old:
                self._filesystem = None


@lru_cache(maxsize=16)
def connection(settings: StorageConfig) -> Connection:
    return Connection(settings)


def new_filesystem(settings: StorageConfig, num_attempts: int) -> s3fs.S3FileSystem:
    """An s3fs file system that asks `num_attempts` times; credentials from the environment, a profile or a role."""
    try:
        import s3fs
    except ImportError:
        raise DataError("s3:// addresses need the package s3fs: pip install s3fs") from None

    for library in ("aiobotocore", "botocore"):  # every process would say where its credentials come from
        logging.getLogger(f"{library}.credentials").setLevel(logging.WARNING)
    filesystem = s3fs.S3FileSystem(
        endpoint_url=settings.endpoint_url or None,
        client_kwargs={"region_name": settings.region} if settings.region else {},
        config_kwargs={
            "connect_timeout": min(10.0, settings.request_timeout_s),
            "read_timeout": settings.request_timeout_s,
            "retries": {"mode": "standard", "total_max_attempts": num_attempts},
            "max_pool_connections": 64,
            "s3": {"addressing_style": "path" if settings.endpoint_url else "auto"},
            "request_checksum_calculation": "when_required",  # many S3-like stores know no trailing checksums
            "response_checksum_validation": "when_required",
        },
        use_listings_cache=False,  # others write to the same folders
        skip_instance_cache=True,  # a file system made anew must look its credentials up anew
    )
    filesystem.retries = num_attempts
    return filesystem


def read_object(filesystem: s3fs.S3FileSystem, **what: str) -> bytes:
    """The whole body of one GET, measured. s3fs's own `cat_file` asks for the size first: two requests for one."""
    from fsspec.asyn import sync

    return sync(filesystem.loop, _read_object, filesystem, what)


def begin_reading(filesystem: s3fs.S3FileSystem, **what: str) -> Future[bytes]:
    """The same without waiting for it: one attempt, which may fail."""
    return asyncio.run_coroutine_threadsafe(_read_object(filesystem, what), filesystem.loop)


async def _read_object(filesystem: s3fs.S3FileSystem, what: dict[str, Any]) -> bytes:
    answer = await filesystem._call_s3("get_object", **what)
    async with answer["Body"] as body:
        data = await body.read()
    if len(data) != answer["ContentLength"]:
        raise ConnectionError(f"{len(data)} of {answer['ContentLength']} bytes arrived")
    return data
