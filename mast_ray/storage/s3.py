"""An `s3://` prefix behind the Storage face: every request is retried until a
deadline, every body is measured.

What an answer means is said in s3_faults.py; here it is acted upon. Messages carry S3's error
code, never a header, signature or key.
"""

from __future__ import annotations

import io
import logging
import os
import random
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.entries import Entry
from mast_ray.storage.s3_faults import ABSENT, EXPIRED, REFUSED, UNSAID, error_code, gave_up

if TYPE_CHECKING:
    import pyarrow.fs

T = TypeVar("T")
log = logging.getLogger(__name__)

PART_BYTES = 32 << 20


class _Shared:
    """Client and moment of last success, shared by the threads of one process for one set of settings."""

    def __init__(self, settings: StorageConfig) -> None:
        self.settings = settings
        self.lock = threading.Lock()
        self.last_success_s = time.monotonic()
        self._client: Any = None

    def client(self) -> Any:
        with self.lock:
            if self._client is None:
                self._client = _new_client(self.settings)
            return self._client

    def forget_client(self, old: Any) -> None:
        """The next request starts from freshly looked-up credentials."""
        with self.lock:
            if self._client is old:
                self._client = None


@lru_cache(maxsize=16)
def _shared(settings: StorageConfig) -> _Shared:
    return _Shared(settings)


def _new_client(settings: StorageConfig) -> Any:
    import botocore.session
    from botocore.config import Config as BotoConfig

    options = BotoConfig(
        connect_timeout=min(10.0, settings.request_timeout_s),
        read_timeout=settings.request_timeout_s,
        retries={"total_max_attempts": 1},  # ours below know about half bodies and expired credentials
        max_pool_connections=64,
        s3={"addressing_style": "path" if settings.endpoint_url else "auto"},
        request_checksum_calculation="when_required",  # many S3-like stores know no trailing checksums
        response_checksum_validation="when_required",
    )
    return botocore.session.get_session().create_client(
        "s3",
        region_name=settings.region or None,
        endpoint_url=settings.endpoint_url or None,
        config=options,
    )


@dataclass(frozen=True)
class S3Storage:
    """A prefix of a bucket."""

    bucket: str
    prefix: str
    settings: StorageConfig

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def at(self, folder: str) -> S3Storage:
        return S3Storage(self.bucket, self._name(folder.strip("/")), self.settings)

    def local_path(self, key: str) -> Path | None:
        return None

    def _name(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def list(self, prefix: str = "", folders_named: Callable[[str], bool] | None = None) -> Iterator[Entry]:
        """Every object below a folder in the store's order (by UTF-8 bytes), a thousand at a time."""
        folder = "/".join(part for part in (self.prefix, prefix.strip("/")) if part)
        below = f"{folder}/" if folder else ""
        strip = len(self.prefix) + 1 if self.prefix else 0
        token = ""
        while True:
            ask = partial(_list_page, bucket=self.bucket, prefix=below, token=token)
            page = self._call("list", below, ask)
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):
                    yield Entry(found["Key"][strip:], found["Size"], found["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            token = page["NextContinuationToken"]

    def stat(self, key: str) -> Entry | None:
        name = self._name(key)
        try:
            found = self._call("look up", name, partial(_head, bucket=self.bucket, key=name))
        except FileNotFoundError:
            return None
        return Entry(key, found["ContentLength"], found["ETag"].strip('"'))

    def open_read(self, key: str, read_ahead_bytes: int = 1 << 20) -> BinaryIO:
        entry = self.stat(key)
        if entry is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        return io.BufferedReader(_RangeReader(self, key, entry), read_ahead_bytes)

    def read_bytes(self, key: str) -> bytes:
        return self._get(key)

    def _get(self, key: str, **options: str) -> bytes:
        name = self._name(key)

        def fetch(client: Any) -> bytes:
            answer = client.get_object(Bucket=self.bucket, Key=name, **options)
            body = answer["Body"].read()
            if len(body) != answer["ContentLength"]:
                raise ConnectionError(f"{len(body)} of {answer['ContentLength']} bytes arrived")
            return body

        return self._call("read", name, fetch)

    def write_atomic(self, key: str, data: bytes) -> None:
        name = self._name(key)
        self._call("write", name, lambda c: c.put_object(Bucket=self.bucket, Key=name, Body=data))

    @contextmanager
    def scratch_file(self) -> Iterator[Path]:
        """A path in the machine's scratch folder to write to; gone after the block."""
        handle, name = tempfile.mkstemp(prefix="mast-")
        os.close(handle)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def publish(self, path: Path, key: str) -> None:
        """Upload a finished scratch file as one object."""
        if path.stat().st_size <= 2 * PART_BYTES:
            self.write_atomic(key, path.read_bytes())
            return
        name = self._name(key)
        where = {"Bucket": self.bucket, "Key": name}
        upload = self._call("write", name, lambda c: c.create_multipart_upload(**where))["UploadId"]
        try:
            self._upload(path, key, where | {"UploadId": upload})
        except BaseException:
            # Parts of an upload that never ends are listed nowhere and paid for by the month.
            with suppress(Exception):
                _shared(self.settings).client().abort_multipart_upload(**where, UploadId=upload)
            raise

    def _upload(self, path: Path, key: str, where: dict[str, str]) -> None:
        name = self._name(key)
        parts: list[dict[str, Any]] = []
        with open(path, "rb") as source:
            while block := source.read(PART_BYTES):
                number = len(parts) + 1
                send = lambda c, n=number, b=block: c.upload_part(**where, PartNumber=n, Body=b)  # noqa: E731
                parts.append({"PartNumber": number, "ETag": self._call("write", name, send)["ETag"]})
        whole = {"Parts": parts}
        try:
            self._call("write", name, lambda c: c.complete_multipart_upload(**where, MultipartUpload=whole))
        except FileNotFoundError:  # NoSuchUpload: an earlier try succeeded and only its answer was lost
            entry = self.stat(key)
            if entry is None or entry.num_bytes != path.stat().st_size:
                raise

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """True when this call created the object, also when only the answer to a successful put was lost."""
        name = self._name(key)
        if not self.has_conditional_put():
            if self.stat(key) is not None:
                return False
            self.write_atomic(key, data)
            return self.read_bytes(key) == data
        try:
            self._call(
                "create",
                name,
                lambda c: c.put_object(Bucket=self.bucket, Key=name, Body=data, IfNoneMatch="*"),
            )
        except FileExistsError:
            # Callers put their own token into `data`, so equal bytes mean that the winner was ourselves.
            return self.read_bytes(key) == data
        return True

    def delete(self, key: str) -> None:
        name = self._name(key)
        self._call("delete", name, lambda c: c.delete_object(Bucket=self.bucket, Key=name))

    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """pyarrow's own client for table reads outside the GIL; credentials from the same chain."""
        return _arrow_filesystem(self.settings), f"{self.bucket}/{self.prefix}".rstrip("/")

    def has_conditional_put(self) -> bool:
        """Whether the store refuses to overwrite when asked to; some ignore the
        request and must be found out.
        """
        return _probe(self.bucket, self.prefix, self.settings)

    def _call(self, verb: str, name: str, request: Callable[[Any], T]) -> T:
        """Run one request until it succeeds, is refused, or the deadline passes."""
        shared, settings = _shared(self.settings), self.settings
        started_s, attempt, pause = time.monotonic(), 0, random.Random()
        while True:
            attempt += 1
            client = None
            try:
                client = shared.client()
                answer = request(client)
                shared.last_success_s = time.monotonic()
                return answer
            except Exception as error:
                code = error_code(error)
                where = f"s3://{self.bucket}/{name}"
                if code in ABSENT or code == "NoSuchUpload":
                    raise FileNotFoundError(where) from None
                if code == "PreconditionFailed":
                    raise FileExistsError(where) from None
                if code == "NotImplemented":
                    raise io.UnsupportedOperation(where) from None
                if code == "InvalidRange":
                    raise EOFError(where) from None
                if code in REFUSED:
                    raise DataError(f"cannot {verb} {where} ({code}):\n{REFUSED[code]}") from None
                if code == "NoCredentials":
                    raise DataError(
                        f"cannot {verb} {where}: no credentials were found:\n"
                        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or run where a role gives them"
                    ) from None
                if code is None:
                    raise
                if code in EXPIRED and client is not None:
                    log.warning("the storage credentials have expired (%s); looking for fresh ones", code)
                    shared.forget_client(client)
                waited_s = time.monotonic() - max(started_s, shared.last_success_s)
                others_succeed = shared.last_success_s > started_s and attempt >= settings.max_attempts
                if waited_s > settings.io_deadline_s or others_succeed:
                    raise TemporaryError(gave_up(verb, where, code, attempt)) from None
                left_s = max(0.05, settings.io_deadline_s - waited_s)
                time.sleep(min(left_s, 5.0, 0.05 * 2 ** min(attempt, 10)) * pause.uniform(0.5, 1.0))


def _list_page(client: Any, bucket: str, prefix: str, token: str) -> dict[str, Any]:
    more = {"ContinuationToken": token} if token else {}
    return client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)


def _head(client: Any, bucket: str, key: str) -> dict[str, Any]:
    """Facts about an object. A refusal without a body has no code: a read of one byte is asked
    why (expired credentials look alike).
    """
    import botocore.exceptions as boto

    try:
        return client.head_object(Bucket=bucket, Key=key)
    except boto.ClientError as error:
        if error_code(error) in UNSAID:
            try:
                client.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()
            except boto.ClientError as told:
                if error_code(told) != "InvalidRange":  # an empty object
                    raise told from None
        raise


class _RangeReader(io.RawIOBase):
    """Seekable reads of one object by byte ranges of one version of it."""

    def __init__(self, storage: S3Storage, key: str, entry: Entry) -> None:
        self._storage, self._key, self._entry, self._position = storage, key, entry, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._entry.num_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._entry.num_bytes)
        if end <= self._position:
            return 0
        try:
            data = self._storage._get(
                self._key, Range=f"bytes={self._position}-{end - 1}", IfMatch=self._entry.version
            )
        except FileExistsError:
            raise DataError(
                f"{self._storage.url}/{self._key} changed while it was read:\nrun again when nothing writes to it"
            ) from None
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


@lru_cache(maxsize=16)
def _arrow_filesystem(settings: StorageConfig) -> Any:
    import pyarrow.fs

    options: dict[str, Any] = {
        "retry_strategy": pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=settings.max_attempts),
        "request_timeout": settings.request_timeout_s,
        "connect_timeout": min(10.0, settings.request_timeout_s),
    }
    if settings.region:
        options["region"] = settings.region
    if settings.endpoint_url:
        scheme, _, host = settings.endpoint_url.partition("://")
        options |= {"endpoint_override": host, "scheme": scheme}
    return pyarrow.fs.S3FileSystem(**options)


@lru_cache(maxsize=64)
def _probe(bucket: str, prefix: str, settings: StorageConfig) -> bool:
    storage = S3Storage(bucket, prefix, settings)
    key = f".probe-{secrets.token_hex(8)}"
    name = storage._name(key)
    put = lambda client, body: client.put_object(  # noqa: E731
        Bucket=bucket, Key=name, Body=body, IfNoneMatch="*"
    )
    try:
        with suppress(FileExistsError):  # only the answer to a successful put was lost
            storage._call("create", name, lambda c: put(c, b"first"))
        try:
            storage._call("create", name, lambda c: put(c, b"second"))
        except FileExistsError:
            return True
        log.warning("%s ignores conditional puts: run one driver at a time on this output", storage.url)
        return False
    except io.UnsupportedOperation:
        log.warning("%s knows no conditional puts: run one driver at a time on this output", storage.url)
        return False
    finally:
        storage.delete(key)
