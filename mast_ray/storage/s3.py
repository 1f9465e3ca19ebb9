"""An `s3://` prefix behind the Storage face: every request goes through s3fs, is retried until a deadline, and
every body is measured.

What an answer means is said in s3_faults.py; here it is acted upon. Messages carry S3's error
code, never a header, signature or key.
"""

from __future__ import annotations

import errno
import io
import logging
import random
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.config.scratch import PREFIX, scratch_folder
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.entries import Entry
from mast_ray.storage.s3_connection import begin_reading, connection, read_object
from mast_ray.storage.s3_faults import ABSENT, EXPIRED, REFUSED, UNSAID, Refused, error_code, gave_up

if TYPE_CHECKING:
    import pyarrow.fs
    import s3fs

T = TypeVar("T")
log = logging.getLogger(__name__)

PART_BYTES = 32 << 20


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
            ask = {"Bucket": self.bucket, "Prefix": below} | ({"ContinuationToken": token} if token else {})
            page = self._ask("list", below, "list_objects_v2", **ask)
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):
                    yield Entry(found["Key"][strip:], found["Size"], found["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            token = page["NextContinuationToken"]

    def stat(self, key: str) -> Entry | None:
        name = self._name(key)
        try:
            found = self._call("look up", name, lambda fs: _head(fs, Bucket=self.bucket, Key=name))
        except FileNotFoundError:
            return None
        return Entry(key, found["ContentLength"], found["ETag"].strip('"'))

    def open_read(self, key: str, read_ahead_bytes: int = 1 << 20) -> BinaryIO:
        return io.BufferedReader(self.open_ranges(key, reads_ahead=True), read_ahead_bytes)

    def open_ranges(self, key: str, reads_ahead: bool = False) -> RangeReader:
        """One request per read, exactly as asked; `reads_ahead` fetches the next block while one is worked on."""
        entry = self.stat(key)
        if entry is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        return RangeReader(self, key, entry, reads_ahead)

    def read_bytes(self, key: str) -> bytes:
        return self._get(key)

    def _get(self, key: str, **options: str) -> bytes:
        name = self._name(key)
        return self._call("read", name, lambda fs: read_object(fs, Bucket=self.bucket, Key=name, **options))

    def _begin_get(self, key: str, **options: str) -> Future[bytes]:
        filesystem = connection(self.settings).filesystem()
        return begin_reading(filesystem, Bucket=self.bucket, Key=self._name(key), **options)

    def write_atomic(self, key: str, data: bytes) -> None:
        name = self._name(key)
        self._ask("write", name, "put_object", Bucket=self.bucket, Key=name, Body=data)

    @contextmanager
    def scratch_file(self) -> Iterator[Path]:
        """A path in the machine's scratch folder to write to; gone after the block. A full disk is that of this folder, on
        whichever machine of a cluster, and never the output's.
        """
        try:
            with scratch_folder() as folder:
                yield folder / "scratch"
        except OSError as error:
            is_ours = error.filename is None or PREFIX in str(error.filename)
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and is_ours:
                error.filename = (
                    f"the scratch folder {tempfile.gettempdir()} (TMPDIR) on {socket.gethostname()}"
                )
            raise

    def publish(self, path: Path, key: str) -> None:
        """Upload a finished scratch file as one object."""
        if path.stat().st_size <= 2 * PART_BYTES:
            self.write_atomic(key, path.read_bytes())
            return
        name = self._name(key)
        where = {"Bucket": self.bucket, "Key": name}
        upload = self._ask("write", name, "create_multipart_upload", **where)["UploadId"]
        try:
            self._upload(path, key, where | {"UploadId": upload})
        except BaseException:
            # Parts of an upload that never ends are listed nowhere and paid for by the month.
            with suppress(Exception):
                filesystem = connection(self.settings).filesystem()
                filesystem.call_s3("abort_multipart_upload", **where, UploadId=upload)
            raise

    def _upload(self, path: Path, key: str, where: dict[str, str]) -> None:
        name = self._name(key)
        parts: list[dict[str, Any]] = []
        with open(path, "rb") as source:
            while block := source.read(PART_BYTES):
                number = len(parts) + 1
                sent = self._ask("write", name, "upload_part", **where, PartNumber=number, Body=block)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        try:
            self._ask("write", name, "complete_multipart_upload", **where, MultipartUpload={"Parts": parts})
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
            self._create(name, data)
        except FileExistsError:
            # Callers put their own token into `data`, so equal bytes mean that the winner was ourselves.
            return self.read_bytes(key) == data
        return True

    def _create(self, name: str, data: bytes) -> None:
        self._ask("create", name, "put_object", Bucket=self.bucket, Key=name, Body=data, IfNoneMatch="*")

    def delete(self, key: str) -> None:
        name = self._name(key)
        self._ask("delete", name, "delete_object", Bucket=self.bucket, Key=name)

    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """A file system for tables and for Ray's own bookkeeping."""
        from mast_ray.storage.s3_arrow import arrow_filesystem  # pyarrow only where tables are read

        open_file = partial(_open_path, settings=self.settings)
        return arrow_filesystem(self.settings, open_file), f"{self.bucket}/{self.prefix}".rstrip("/")

    def has_conditional_put(self) -> bool:
        """Whether the store refuses to overwrite when asked to; some ignore the
        request and must be found out.
        """
        return _probe(self.bucket, self.prefix, self.settings)

    def _ask(self, verb: str, name: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One S3 operation without a body in its answer."""
        return self._call(verb, name, lambda fs: fs.call_s3(operation, **parameters))

    def _call(self, verb: str, name: str, request: Callable[[s3fs.S3FileSystem], T]) -> T:
        """Run one request until it succeeds, is refused, or the deadline passes."""
        shared, settings = connection(self.settings), self.settings
        started_s, attempt, pause = time.monotonic(), 0, random.Random()
        while True:
            attempt += 1
            filesystem = shared.filesystem()
            try:
                answer = request(filesystem)
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
                    raise Refused(f"cannot {verb} {where} ({code}):\n{REFUSED[code]}", code) from None
                if code == "NoCredentials":
                    raise DataError(
                        f"cannot {verb} {where}: no credentials were found:\n"
                        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or run where a role gives them"
                    ) from None
                if code is None:
                    raise
                if code in EXPIRED:
                    log.warning("the storage credentials have expired (%s); looking for fresh ones", code)
                    shared.forget(filesystem)
                waited_s = time.monotonic() - max(started_s, shared.last_success_s)
                others_succeed = shared.last_success_s > started_s and attempt >= settings.max_attempts
                if waited_s > settings.io_deadline_s or others_succeed:
                    raise TemporaryError(gave_up(verb, where, code, attempt)) from None
                left_s = max(0.05, settings.io_deadline_s - waited_s)
                time.sleep(min(left_s, 5.0, 0.05 * 2 ** min(attempt, 10)) * pause.uniform(0.5, 1.0))


def _head(filesystem: s3fs.S3FileSystem, **where: str) -> dict[str, Any]:
    """Facts about an object. A refusal without a body has no code: a read of one byte is asked
    why (expired credentials look alike).
    """
    try:
        return filesystem.call_s3("head_object", **where)
    except Exception as error:
        if error_code(error) not in UNSAID:
            raise
    try:
        read_object(filesystem, **where, Range="bytes=0-0")
    except Exception as error:
        if error_code(error) != "InvalidRange":  # an empty object
            raise
    raise ConnectionError("refused and at once allowed: credentials were renewed in between")


def _open_path(path: str, settings: StorageConfig) -> RangeReader:
    bucket, _, key = path.partition("/")
    return S3Storage(bucket, "", settings).open_ranges(key)


class RangeReader(io.RawIOBase):
    """Seekable reads of one object by byte ranges of one version of it."""

    def __init__(self, storage: S3Storage, key: str, entry: Entry, reads_ahead: bool) -> None:
        self._storage, self._key, self._entry, self._reads_ahead = storage, key, entry, reads_ahead
        self._position = 0
        self._last_end = -1
        self._ahead: tuple[int, int, Future[bytes]] | None = None  # the range that is on its way

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

    def read(self, size: int | None = -1) -> bytes:
        """The bytes as they came, without the copy that reading into a buffer would be."""
        return self._next(self._entry.num_bytes if size is None or size < 0 else size)

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes:
        start, end = self._position, min(self._position + size, self._entry.num_bytes)
        if end <= start:
            return b""
        data = self._arrived(start, end) or self._fetch(start, end)
        after = min(end + size, self._entry.num_bytes)
        if self._reads_ahead and start == self._last_end and after > end:  # two in a row: a third is likely
            self._ahead = (end, after, self._storage._begin_get(self._key, **self._range(end, after)))
        self._position = self._last_end = end
        return data

    def _arrived(self, start: int, end: int) -> bytes | None:
        """What was asked for ahead, if it is this; what failed is asked for again, with patience."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead[:2] != (start, end):
            ahead[2].cancel()
            return None
        with suppress(Exception):
            return ahead[2].result()
        return None

    def _range(self, start: int, end: int) -> dict[str, str]:
        return {"Range": f"bytes={start}-{end - 1}", "IfMatch": self._entry.version}

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            return self._storage._get(self._key, **self._range(start, end))
        except FileExistsError:
            raise DataError(
                f"{self._storage.url}/{self._key} changed while it was read:\nrun again when nothing writes to it"
            ) from None


@lru_cache(maxsize=64)
def _probe(bucket: str, prefix: str, settings: StorageConfig) -> bool:
    storage = S3Storage(bucket, prefix, settings)
    key = f".probe-{secrets.token_hex(8)}"
    name = storage._name(key)
    try:
        with suppress(FileExistsError):  # only the answer to a successful put was lost
            storage._create(name, b"first")
        try:
            storage._create(name, b"second")
        except FileExistsError:
            return True
        log.warning(
            "%s ignores conditional puts, by which runs notice each other: start one at a time with this --out",
            storage.url,
        )
        return False
    except io.UnsupportedOperation:
        log.warning(
            "%s knows no conditional puts, by which runs notice each other: start one at a time with this --out",
            storage.url,
        )
        return False
    finally:
        storage.delete(key)
