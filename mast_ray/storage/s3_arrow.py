"""pyarrow's face of an S3 store: table files are read by the opener it is handed, whatever else Ray does there goes
through s3fs.
"""

from __future__ import annotations

from collections.abc import Callable
from io import RawIOBase
from typing import Any

import pyarrow as pa
from pyarrow.fs import FSSpecHandler, PyFileSystem

from mast_ray.config.tree import StorageConfig
from mast_ray.storage.s3_connection import new_filesystem


class S3Handler(FSSpecHandler):
    """Travels to workers as its settings and opens its connections there."""

    def __init__(self, settings: StorageConfig, open_file: Callable[[str], RawIOBase]) -> None:
        super().__init__(new_filesystem(settings, settings.max_attempts))
        self.settings, self.open_file = settings, open_file

    def __reduce__(self) -> tuple[Any, ...]:
        return S3Handler, (self.settings, self.open_file)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3Handler) and other.settings == self.settings

    def __hash__(self) -> int:
        return hash(self.settings)

    def open_input_file(self, path: str) -> pa.PythonFile:
        """One request per range that pyarrow asks for, each with the opener's deadline and messages."""
        return pa.PythonFile(self.open_file(path), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)


def arrow_filesystem(settings: StorageConfig, open_file: Callable[[str], RawIOBase]) -> PyFileSystem:
    """`open_file` takes BUCKET/KEY and must travel by pickle."""
    return PyFileSystem(S3Handler(settings, open_file))
