"""Seekable read-only views of a binary file, as libsndfile reads them through callbacks.

An exception inside a callback is lost in C and would look like the end of the file: a network error would
pass for a truncated recording. `WatchedFile` keeps the exception for `raise_if_failed`.
"""

from __future__ import annotations

import io
from typing import BinaryIO


class SplicedFile(io.RawIOBase):
    """`prefix` followed by `num_bytes` bytes of `file` from `offset`: a body under a repaired header."""

    def __init__(self, prefix: bytes, file: BinaryIO, offset: int, num_bytes: int) -> None:
        super().__init__()
        self._prefix, self._file, self._offset = prefix, file, offset
        self._length = len(prefix) + num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        wanted = max(0, min(len(buffer), self._length - self._position))
        if self._position < len(self._prefix):
            piece = self._prefix[self._position : self._position + wanted]
        else:
            self._file.seek(self._offset + self._position - len(self._prefix))
            piece = self._file.read(wanted)
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


class WatchedFile:
    """Passes reads on; remembers an exception, and whether a read ever ran into the end of the file."""

    def __init__(self, file: BinaryIO | SplicedFile) -> None:
        self._file = file
        self.error: Exception | None = None
        self.hit_end = False

    def raise_if_failed(self) -> None:
        if self.error is not None:
            raise self.error

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        try:
            filled = 0
            while filled < len(buffer):  # a raw or remote file may return less than asked for in the middle
                piece = self._file.read(len(buffer) - filled)
                if not piece:
                    self.hit_end = True
                    break
                buffer[filled : filled + len(piece)] = piece
                filled += len(piece)
            return filled
        except Exception as error:
            self.error = self.error or error
            return 0

    def read(self, count: int = -1) -> bytes:
        try:
            return self._file.read(count) or b""
        except Exception as error:
            self.error = self.error or error
            return b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except Exception as error:
            self.error = self.error or error
            return 0

    def tell(self) -> int:
        return self._file.tell()
