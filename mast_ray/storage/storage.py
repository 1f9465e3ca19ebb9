"""One face over a local folder and an `s3://` prefix: whole objects, conditional puts, sorted listings.

Keys are relative to the root, with forward slashes. A storage is a small frozen value: it travels to Ray
workers and opens its connections there. Nothing here ever holds a credential.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from mast_ray.config.errors import DataError
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.entries import BROKEN_LINK, FOLDER, LOCKED, NO_FILE, Entry
from mast_ray.storage.s3 import S3Storage

if TYPE_CHECKING:
    import pyarrow.fs

T = TypeVar("T")
log = logging.getLogger(__name__)

_TEMPORARY = ".tmp-"  # files with this prefix are unfinished and never listed
_written_here: set[str] = set()  # names of those that this process is writing
# what disks without hard links (FAT, exFAT, some network shares) answer to one
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_ODD_BYTE = re.compile("\ufffd\\(([89a-f][0-9a-f])\\)")


class Storage(Protocol):
    """What stages read from and write to."""

    def __hash__(self) -> int: ...

    @property
    def url(self) -> str: ...
    def at(self, folder: str) -> Storage: ...
    def list(
        self, prefix: str = "", folders_named: Callable[[str], bool] | None = None
    ) -> Iterator[Entry]: ...
    def stat(self, key: str) -> Entry | None: ...
    def open_read(self, key: str, read_ahead_bytes: int = 1 << 20) -> BinaryIO: ...
    def read_bytes(self, key: str) -> bytes: ...
    def write_atomic(self, key: str, data: bytes) -> None: ...
    def scratch_file(self) -> AbstractContextManager[Path]: ...
    def publish(self, path: Path, key: str) -> None: ...
    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def delete(self, key: str) -> None: ...
    def local_path(self, key: str) -> Path | None: ...
    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]: ...
    def has_conditional_put(self) -> bool: ...


def is_being_written(name: str) -> bool:
    """Whether a scratch file is this process's own and in use (a sign of life of a lease, by another thread)."""
    return name in _written_here


def open_storage(uri: str | Path, settings: StorageConfig | None = None) -> Storage:
    """`s3://bucket/prefix`, `file:///folder` or a plain path."""
    text = str(uri)
    if text.startswith("s3://"):
        bucket, _, prefix = text[5:].partition("/")
        if not bucket:
            raise DataError(f"{text} names no bucket: write s3://BUCKET/PREFIX")
        if "@" in bucket or ":" in bucket:
            raise DataError(
                "an address must not hold keys (s3://KEY:SECRET@...): it ends up in manifests and logs;\n"
                "write s3://BUCKET/PREFIX, and give the keys as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return S3Storage(bucket, prefix.strip("/"), settings or StorageConfig())
    if text.startswith("s3:/"):  # taken for a path, it would be a folder of that name here
        raise DataError(f"{text} is no address of a bucket: write s3://BUCKET/PREFIX")
    if "://" in text and not text.startswith("file://"):
        raise DataError(f"{text}: only local paths and s3:// are supported")
    return LocalStorage(str(Path(text.removeprefix("file://")).expanduser().absolute()))


def full_url(place: str) -> str:
    """A place as any process sees it: Ray Train moves its workers to a folder of their own,
    where relative paths lead astray.
    """
    return open_storage(place).url if place else ""


def open_beside(uri: str, settings: StorageConfig | None = None) -> tuple[Storage, str]:
    """The folder that holds a file, and its name there; a bare name lies here, /name at the root."""
    folder, slash, name = uri.rpartition("/")
    return open_storage(folder or slash or ".", settings), name


@dataclass(frozen=True)
class LocalStorage:
    """A folder. Objects appear by rename or link, so a reader sees them whole or not at all; where a disk has no hard
    links, one that is put if absent is empty for a moment.
    """

    root: str

    @property
    def url(self) -> str:
        return self.root

    def at(self, folder: str) -> LocalStorage:
        return LocalStorage(str(Path(self.root) / folder))

    def local_path(self, key: str) -> Path:
        return Path(self.root) / _name_of(key)

    def list(self, prefix: str = "", folders_named: Callable[[str], bool] | None = None) -> Iterator[Entry]:
        """Every file below a folder, sorted by name within each folder; memory holds one folder at a time.

        A folder whose key `folders_named` accepts is an entry too: a folder called x.wav is a
        fault worth naming. So are one that may not be read, links that lead nowhere, pipes and
        devices, where it is given: whatever has a name was offered. A link to a folder above
        itself is passed over.
        """
        yield from self._walk(prefix.rstrip("/"), folders_named, frozenset())

    def _walk(
        self, folder: str, folders_named: Callable[[str], bool] | None, above: frozenset[tuple[int, int]]
    ) -> Iterator[Entry]:
        path = self.local_path(folder)
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            above |= {_place(path)}
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError:
            if folders_named is None or not folder:
                raise
            yield Entry(folder, 0, LOCKED)
            return
        for entry in entries:
            key = f"{folder}/{key_of(entry.name)}" if folder else key_of(entry.name)
            if _is_folder(entry):
                if entry.is_symlink() and _place(entry) in above:
                    log.warning("%s/%s leads back to a folder above it: passed over", self.root, key)
                    continue
                if folders_named is not None and folders_named(key):
                    yield Entry(key, 0, FOLDER)
                yield from self._walk(key, folders_named, above)
            elif not entry.name.startswith(_TEMPORARY):
                listed = _entry(key, entry)
                if listed.version not in (BROKEN_LINK, NO_FILE) or folders_named is not None:
                    yield listed

    def stat(self, key: str) -> Entry | None:
        try:
            status = os.stat(self.local_path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(key, status.st_size, str(status.st_mtime_ns))

    def open_read(self, key: str, read_ahead_bytes: int = 1 << 20) -> BinaryIO:
        return open(self.local_path(key), "rb")

    def read_bytes(self, key: str) -> bytes:
        return self.local_path(key).read_bytes()

    def write_atomic(self, key: str, data: bytes) -> None:
        with self.scratch_file() as path:
            path.write_bytes(data)
            self.publish(path, key)

    @contextmanager
    def scratch_file(self) -> Iterator[Path]:
        """A path on the same disk to write to; gone after the block unless it was published."""
        Path(self.root).mkdir(parents=True, exist_ok=True)
        temporary = Path(self.root) / f"{_TEMPORARY}{secrets.token_hex(8)}"
        _written_here.add(temporary.name)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
            _written_here.discard(temporary.name)

    def publish(self, path: Path, key: str) -> None:
        """Make a finished scratch file an object, by rename."""
        final = self.local_path(key)
        final.parent.mkdir(parents=True, exist_ok=True)
        sync_to_disk(path)
        os.replace(path, final)
        sync_to_disk(final.parent)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """True when this call created the object; a hard link is the local
        conditional put: whole and exclusive.
        """
        final = self.local_path(key)
        final.parent.mkdir(parents=True, exist_ok=True)
        with self.scratch_file() as temporary:
            temporary.write_bytes(data)
            sync_to_disk(temporary)
            try:
                os.link(temporary, final)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if not _take_name(temporary, final):
                    return False
        sync_to_disk(final.parent)
        return True

    def delete(self, key: str) -> None:
        self.local_path(key).unlink(missing_ok=True)

    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem(use_mmap=True), self.root

    def has_conditional_put(self) -> bool:
        return True


def _take_name(whole: Path, final: Path) -> bool:
    """Without hard links: whoever creates the name, empty, may rename a whole file over it. A process killed in between
    leaves an empty object.
    """
    try:
        os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    try:
        os.replace(whole, final)
    except BaseException:
        final.unlink(missing_ok=True)
        raise
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or a disk that fails: what it is, is found when it is opened
        return False


def _entry(key: str, entry: os.DirEntry[str]) -> Entry:
    """A file as listed; what is none, or cannot be looked at, has no bytes and says so."""
    try:
        status = entry.stat()
    except OSError:
        return Entry(key, 0, BROKEN_LINK if entry.is_symlink() else NO_FILE)
    if not stat.S_ISREG(status.st_mode):
        return Entry(key, 0, NO_FILE)
    return Entry(key, status.st_size, str(status.st_mtime_ns))


def _place(path: Path | os.DirEntry[str]) -> tuple[int, int]:
    """Device and number of a folder: the same by whatever name it is reached."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def key_of(name: str) -> str:
    """A file's name as text. Bytes that are not UTF-8 (memory cards of old systems) are written out: "Sp\ufffd(e4)t.wav"."""
    if name.isascii():
        return name
    return "".join(f"\ufffd({ord(c) - 0xDC00:02x})" if "\udc80" <= c <= "\udcff" else c for c in name)


def _name_of(key: str) -> str:
    """The file that a key names."""
    return _ODD_BYTE.sub(lambda odd: chr(0xDC00 + int(odd[1], 16)), key) if "\ufffd" in key else key


def sync_to_disk(path: Path) -> None:
    """A folder or file as it is now outlives a power cut; a new file does when its folder was synced too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def map_keys(work: Callable[[str], T], keys: list[str], num_threads: int = 16) -> list[T]:
    """`work` over many small objects at once, in order: latency, not bandwidth,
    is what listing jobs wait for.
    """
    if len(keys) < 4:
        return [work(key) for key in keys]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(work, keys))
