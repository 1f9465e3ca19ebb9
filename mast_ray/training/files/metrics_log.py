"""The metrics of a run as a table of our own: metrics.jsonl while it runs,
metrics.parquet at its end, TensorBoard beside.

Rows are (step, samples, kind, name, value) flattened per step: one JSON object per logged
step or validation. A resumed run drops the rows after its checkpoint and writes them again,
so the table never holds a step twice.
"""

from __future__ import annotations

import io
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from mast_ray.config.errors import TemporaryError
from mast_ray.config.scratch import scratch_folder
from mast_ray.storage.storage import Storage

log = logging.getLogger("mast.training")

JSONL, PARQUET, TENSORBOARD = "metrics.jsonl", "metrics.parquet", "tensorboard"
FLUSH_EVERY_S = 30.0


class MetricsLog:
    """Rank 0's log. The JSONL object is rewritten whole: it is small, and S3 cannot append."""

    def __init__(
        self, storage: Storage, board: Literal["tensorboard", "none"] = "tensorboard",
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.storage, self.board, self.now = storage, board, now
        self.rows: list[dict[str, Any]] = []
        self._flushed_s = now()
        self._scratch = ExitStack()
        self._events: Path | None = None  # TensorBoard's folder where the storage is none
        self._board: Any = None

    def begin(self, resume_step: int, unscored: Sequence[int] = ()) -> None:
        """Take up the rows up to the step a run resumes from; steps that are scored again lose their figures."""
        again = {("validation", step) for step in unscored}
        rows = [row for row in read_metrics(self.storage) if row["step"] <= resume_step]
        self.rows = [row for row in rows if (row["kind"], row["step"]) not in again]
        if self.board == "none":
            return
        folder = self.storage.local_path(TENSORBOARD)
        if folder is None:
            folder = self._events = self._scratch.enter_context(scratch_folder())
        self._board = _tensorboard(folder, resume_step)

    def add(self, kind: str, step: int, samples: int, values: Mapping[str, float]) -> None:
        """One row; `kind` is "train", "validation" or "epoch" (what was fed). Values that are not finite are kept as text ("nan")."""
        self.rows.append(
            {"kind": kind, "step": step, "samples": samples} | {k: _jsonable(v) for k, v in values.items()}
        )
        if self._board is not None:
            for name, value in values.items():
                if math.isfinite(value):
                    self._board.add_scalar(f"{kind}/{name}", value, step)
        if self.now() - self._flushed_s > FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write the rows so far; a failing storage is survived here, the checkpoints
        decide when it is too much.
        """
        self._flushed_s = self.now()
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        try:
            self.storage.write_atomic(JSONL, text.encode())
        except (OSError, TemporaryError) as error:
            log.warning("metrics not written to %s (%s)", self.storage.url, error)

    def close(self) -> None:
        """Flush, write the Parquet table, and carry TensorBoard's events to a
        storage that is not a folder.
        """
        self.flush()
        if self._board is not None:
            self._board.close()
        self.storage.write_atomic(PARQUET, _parquet_bytes(self.rows))
        with self._scratch:
            for path in sorted(self._events.rglob("events.*")) if self._events is not None else ():
                self.storage.write_atomic(f"{TENSORBOARD}/{path.name}", path.read_bytes())


def read_metrics(storage: Storage) -> list[dict[str, Any]]:
    """Rows of a run so far; a torn last line (never written by us) ends the table."""
    if storage.stat(JSONL) is None:
        return []
    rows = []
    for line in storage.read_bytes(JSONL).decode().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "kind":
            columns[name] = pa.array(values, pa.string())
        elif name in ("step", "samples"):
            columns[name] = pa.array(values, pa.int64())
        else:
            columns[name] = pa.array([None if v is None else float(v) for v in values], pa.float64())
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _jsonable(value: float) -> float | str:
    value = float(value)
    return value if math.isfinite(value) else str(value)


def _tensorboard(folder: Path, resume_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("tensorboard is not installed: metrics go to %s only", JSONL)
        return None
    _hush_writing_threads()
    return SummaryWriter(str(folder), purge_step=resume_step or None)


def _hush_writing_threads() -> None:
    """No traceback when TensorBoard's own thread cannot write (a full disk): the next row raises the same error here."""
    before = threading.excepthook
    if getattr(before, "__name__", "") == "_without_full_disks":
        return

    def _without_full_disks(told: threading.ExceptHookArgs) -> None:
        if not (isinstance(told.exc_value, OSError) and type(told.thread).__name__ == "_AsyncWriterThread"):
            before(told)

    threading.excepthook = _without_full_disks
