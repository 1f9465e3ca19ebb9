"""A detector on its device, fed with segments of many recordings, run on whole batches of one shape.

Legend: B windows, F bins, K boxes, D numbers of an embedding. Window k of a recording is its segments k
and k + 1. Each log-mel frame is computed once, by the decoding threads (CPU) or here (GPU). A batch is
always B windows, the last one padded, so a compiled graph meets one shape; a GPU's answers are collected
one batch later, while it works on the next. A model of values above the background gets segments once the
background of their stretch is known: those before it are held (inference/background_hold.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mast_ray.boxes.batch import Detections
from mast_ray.config.errors import ConfigError
from mast_ray.inference.background_hold import BackgroundHold, Pushed
from mast_ray.inference.decode_threads import SegmentKind
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.grid import CHUNK_FRAMES, NUM_BINS, SEGMENT_FRAMES, end_of_sound
from mast_ray.spectrogram.logmel import logmel_on_device
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.training.engine import Precision, autocast

EmbeddingKind = Literal["none", "projection", "neck", "encoder"]


@dataclass(frozen=True)
class InferenceKnobs:
    """How a detector is run."""

    batch_size: int = 16
    score_floor: float = 0.01
    nms_overlap: float = 0.5
    max_detections: int = 300
    embeddings: EmbeddingKind = "none"
    precision: Precision = "fp32"
    compile: Literal["no", "yes"] = "no"


class WindowBoxes(NamedTuple):
    """Detections of `num_windows` windows of one recording, in frames and bins of their windows."""

    num_windows: int
    window: NDArray[np.int64]  # (K,)
    boxes: NDArray[np.float32]  # (K, 4)
    score: NDArray[np.float32]  # (K,)
    embedding: NDArray[np.float16] | None  # (K, D)


class _Window(NamedTuple):
    recording: str
    number: int
    first: int  # rows of the held segments
    second: int
    valid_frames: int  # the rest is padding behind the recording's end


class _Answer(NamedTuple):
    windows: list[_Window]
    tensors: tuple[Tensor, ...]  # corners, score, is_valid, embeddings where wanted
    ready: torch.cuda.Event | None


class WindowDetector:
    """`push` segments as they come, `flush` at the end; `found` hears of every batch's
    boxes, recording by recording.
    """

    def __init__(
        self,
        detector: Any,
        normalisation: Normalisation,
        tail: Tail,
        knobs: InferenceKnobs,
        device: torch.device | str = "cpu",
        segment_kind: SegmentKind | None = None,
    ) -> None:
        self.device, self.knobs = torch.device(device), knobs
        self._takes_background = normalisation.background != "none"  # off the segments, before windows
        self._normalisation, self._tail = replace(normalisation, background="none"), tail
        if knobs.embeddings != "none" and not hasattr(detector, "embed_boxes"):
            raise ConfigError(
                f"detect.embeddings={knobs.embeddings}: this kind of detector has no embeddings: leave it at none"
            )
        self._detector = (
            detector.to(self.device).eval() if isinstance(detector, torch.nn.Module) else detector
        )
        self._infer: Callable[[Tensor, Tensor], tuple[Tensor, ...]] = self._inferred
        if knobs.compile == "yes":
            self._infer = torch.compile(self._inferred, dynamic=False)
        self.segment_kind: SegmentKind = segment_kind or (
            "samples" if self.device.type == "cuda" else "logmel"
        )
        self.waited_s = 0.0  # for the device's answers (on a CPU: all of inference)
        self.begin(lambda recording, boxes: None)

    def warm_up(self) -> None:
        """Let the compiler work before the first unit: its minute is no stall of that unit."""
        if self.knobs.compile == "yes":
            silence = torch.zeros(self.knobs.batch_size, CHUNK_FRAMES, NUM_BINS, device=self.device)
            with torch.no_grad():
                self._infer(silence, self._on_device([CHUNK_FRAMES] * self.knobs.batch_size))

    def begin(self, found: Callable[[str, WindowBoxes], None]) -> None:
        """Forget everything of an earlier unit; `found` hears of the next one's."""
        self._found = found
        self._waiting: list[tuple[Pushed, NDArray[np.float32]]] = []
        self._backgrounds = BackgroundHold(self.device) if self._takes_background else None
        self._num_waiting = 0
        self._held: Tensor | None = None  # (N, 512, F) log-mel on the device that windows still need
        self._last: dict[str, tuple[int, int]] = {}  # of recordings that are still going on: segment, its row
        self._windows: list[_Window] = []
        self._in_flight: list[_Answer] = []

    def push(
        self,
        recording: str,
        first_segment: int,
        segments: NDArray[np.float32],
        is_last: bool = False,
        num_frames: int | None = None,
    ) -> None:
        """(n, ...) further segments of a recording, in order. `num_frames`: of the whole recording, with its
        last segments; all frames of earlier ones are valid.
        """
        self._waiting.append((Pushed(recording, first_segment, len(segments), is_last, num_frames), segments))
        self._num_waiting += len(segments)
        if self._num_waiting >= self.knobs.batch_size:
            self._make_windows()
            while len(self._windows) >= self.knobs.batch_size:
                self._run_batch()

    def flush(self) -> None:
        """Run what is left and collect every answer."""
        self._make_windows()
        while self._windows:
            self._run_batch()
        while self._in_flight:
            self._collect(self._in_flight.pop(0))

    def _make_windows(self) -> None:
        arrays = [segments for _, segments in self._waiting if len(segments)]
        pushed = [about for about, _ in self._waiting]
        logmel = self._logmel(arrays) if arrays else None
        if self._backgrounds is not None:
            logmel, pushed = self._backgrounds.released(logmel, pushed)
        row = self._hold(logmel) if logmel is not None else 0
        for recording, first_segment, num_segments, is_last, num_frames in pushed:
            for number in range(first_segment, first_segment + num_segments):
                before = self._last.get(recording)
                if before is not None:
                    assert before[0] == number - 1, f"segments of {recording} out of order"
                    left = CHUNK_FRAMES if num_frames is None else num_frames - (number - 1) * SEGMENT_FRAMES
                    window = _Window(recording, number - 1, before[1], row, min(left, CHUNK_FRAMES))
                    self._windows.append(window)
                self._last[recording] = (number, row)
                row += 1
            if is_last:
                self._last.pop(recording, None)
        self._waiting, self._num_waiting = [], 0

    def _hold(self, logmel: Tensor) -> int:
        """Keep segments for windows to come, and of the earlier ones those still
        needed; returns the first new row.

        Rows are numbers and a batch is one gather: a tensor per segment would take Python's
        lock a thousand times a batch.
        """
        needed = {row for window in self._windows for row in (window.first, window.second)}
        rows = sorted(needed | {row for _, row in self._last.values()})
        if self._held is None or not rows:
            self._held = logmel
            return 0
        new = {row: place for place, row in enumerate(rows)}
        self._held = torch.cat((self._held.index_select(0, self._on_device(rows)), logmel))
        self._windows = [w._replace(first=new[w.first], second=new[w.second]) for w in self._windows]
        self._last = {recording: (number, new[row]) for recording, (number, row) in self._last.items()}
        return len(rows)

    def _on_device(self, numbers: list[int]) -> Tensor:
        tensor = torch.tensor(numbers, pin_memory=self.device.type == "cuda")
        return tensor.to(self.device, non_blocking=True)

    def _logmel(self, pushed: list[NDArray[np.float32]]) -> Tensor:
        """Lists of (n, ...) segments -> (N, 512, F) log-mel on the device."""
        parts = [torch.from_numpy(segments) for segments in pushed]
        on_gpu = self.device.type == "cuda"
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        segments = torch.cat(parts, out=torch.empty(shape, pin_memory=on_gpu))  # the one copy on the host
        segments = segments.to(self.device, non_blocking=True)
        if self.segment_kind == "logmel":
            return segments
        with torch.no_grad():
            return logmel_on_device(segments)

    def _run_batch(self) -> None:
        begun_s = time.perf_counter()
        windows, self._windows = (
            self._windows[: self.knobs.batch_size],
            self._windows[self.knobs.batch_size :],
        )
        padded = windows + [windows[0]] * (self.knobs.batch_size - len(windows))
        rows = self._on_device([row for window in padded for row in (window.first, window.second)])
        valid_frames = self._on_device([window.valid_frames for window in padded])
        assert self._held is not None
        raw = self._held.index_select(0, rows).view(len(padded), CHUNK_FRAMES, NUM_BINS).float()
        with torch.no_grad():
            tensors = self._infer(raw, valid_frames)
        self._in_flight.append(_answer(windows, tensors))
        depth = 1 if self.device.type == "cuda" else 0
        self.waited_s += time.perf_counter() - begun_s if depth == 0 else 0.0
        while len(self._in_flight) > depth:
            self._collect(self._in_flight.pop(0))

    def _inferred(self, raw: Tensor, valid_frames: Tensor) -> tuple[Tensor, ...]:
        """(B, 1024, F) log-mel -> corners, score, is_valid and, where wanted, embeddings of every slot"""
        knobs = self.knobs
        logmel = self._normalisation(raw, tail=self._tail)
        with autocast(self.device, knobs.precision):
            found: Detections = self._detector.detect(
                logmel,
                knobs.score_floor,
                knobs.nms_overlap,
                knobs.max_detections,
                end_frames=end_of_sound(valid_frames),
            )
            answer = (found.corners.float(), found.score.float(), found.is_valid)
            if knobs.embeddings == "none":
                return answer
            return (*answer, self._detector.embed_boxes(logmel, found.corners, knobs.embeddings).half())

    def _collect(self, answer: _Answer) -> None:
        begun_s = time.perf_counter()
        if answer.ready is not None:
            answer.ready.synchronize()
            self.waited_s += time.perf_counter() - begun_s
        num_windows = len(answer.windows)
        corners, score, is_valid, *rest = (tensor.numpy()[:num_windows] for tensor in answer.tensors)
        row = np.nonzero(is_valid)[0]
        numbers = np.array([window.number for window in answer.windows], np.int64)[row]
        boxes, scores = corners[is_valid], score[is_valid]
        embedding = rest[0][is_valid] if rest else None
        for recording, first, end in _runs([window.recording for window in answer.windows]):
            part = slice(*np.searchsorted(row, (first, end)))
            vectors = None if embedding is None else embedding[part]
            self._found(
                recording, WindowBoxes(end - first, numbers[part], boxes[part], scores[part], vectors)
            )


def _runs(names: list[str]) -> list[tuple[str, int, int]]:
    """Stretches of equal names: (name, first, end)."""
    starts = [i for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    return [(names[first], first, end) for first, end in zip(starts, [*starts[1:], len(names)], strict=True)]


def _answer(windows: list[_Window], tensors: tuple[Tensor, ...]) -> _Answer:
    """On a GPU: copies into pinned memory begin at once, and an event says when they are there."""
    if tensors[0].device.type != "cuda":
        return _Answer(windows, tensors, None)
    copies = []
    for tensor in tensors:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copies.append(copy.copy_(tensor, non_blocking=True))
    ready = torch.cuda.Event()
    ready.record()
    return _Answer(windows, tuple(copies), ready)
