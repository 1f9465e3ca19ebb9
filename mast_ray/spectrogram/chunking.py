"""How a recording is cut: samples into stored segments of 512 frames, segments into chunks, and boxes.

Legend: N samples, F = 128 bins, K boxes. Chunk k is segments k and k + 1, i.e. frames [512 k, 512 k + 1024)
of the recording. Boxes are (t0, f0, t1, f1) in frames and bins: of the recording going in, of the
chunk coming out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.spectrogram.grid import (
    CHUNK_FRAMES,
    FRAME_LENGTH_SAMPLES,
    FRAME_SHIFT_SAMPLES,
    HOP_SAMPLES,
    NUM_BINS,
    SAMPLE_RATE_HZ,
    SEGMENT_FRAMES,
)
from mast_ray.spectrogram.logmel import LOG_FLOOR, LogMel, LogMelStream

ShortRecordings = Literal["pad", "drop"]
Tail = Literal["real", "zeros"]

SHORTEST_SAMPLES = SAMPLE_RATE_HZ  # 1 s: below this even "pad" gives no chunk
TAIL_FRAMES = 2  # 10.24 s of audio hold 1022 whole frames; the model takes 1024
SHORTEST_REMNANT_FRAMES = 10  # 100 ms


@dataclass(frozen=True)
class Segment:
    """512 frames as they are stored."""

    index: int
    logmel: NDArray[np.float32]  # (512, F)
    valid_frames: int  # frames wholly inside the audio; the rest straddles its end or is padding


class ChunkBoxes(NamedTuple):
    """Boxes of many chunks, ordered by chunk and then by origin."""

    chunk: NDArray[np.int64]  # (K,)
    origin: NDArray[np.int64]  # (K,) row of the recording's box
    corners: NDArray[np.float64]  # (K, 4) clipped, in frames of the chunk


def num_chunks_of(num_samples: int, short_recordings: ShortRecordings = "pad") -> int:
    """Chunks of a recording: every 5.12 s one that is at least half audio.

    A recording under half a chunk gives none by that rule ("drop", the paper's way); "pad" still gives one
    chunk to a recording of at least 1 s, because archives of 5-second clips exist.
    """
    chunks = num_samples // HOP_SAMPLES
    if chunks == 0 and short_recordings == "pad" and num_samples >= SHORTEST_SAMPLES:
        return 1
    return chunks


def num_segments_of(num_samples: int, short_recordings: ShortRecordings = "pad") -> int:
    """Segments stored for a recording: one more than its chunks, or none."""
    chunks = num_chunks_of(num_samples, short_recordings)
    return chunks + 1 if chunks else 0


class SegmentStream:
    """Segments of one recording fed in blocks of any size: `push` samples, then `finish`.

    Memory does not grow with the recording. The end is padded as if the last chunk had been
    mean-centred over its valid samples and filled with zeros before its frames were computed;
    wholly padded frames are log(eps).
    """

    def __init__(self, short_recordings: ShortRecordings = "pad", logmel: LogMel | None = None) -> None:
        self.num_samples = 0
        self._short_recordings: ShortRecordings = short_recordings
        self._logmel = logmel if logmel is not None else LogMel()
        self._stream = LogMelStream(self._logmel)
        self._frames = np.zeros((0, NUM_BINS), np.float32)
        self._next_segment = 0
        self._hop_sums = [0.0, 0.0]  # of the last whole hop and of the hop now being filled

    def push(self, samples: NDArray[np.float32]) -> list[Segment]:
        """(N,) further samples -> segments that are now complete."""
        samples = np.asarray(samples, np.float32)
        self._add_to_sums(samples)
        self._frames = np.concatenate((self._frames, self._stream.push(samples)))
        return self._complete_segments()

    def finish(self) -> list[Segment]:
        """The last segments, padded. A recording too short for a chunk has none."""
        num_segments = num_segments_of(self.num_samples, self._short_recordings)
        self._frames = np.concatenate((self._frames, self._stream.finish()))
        done = self._complete_segments()
        left = num_segments - self._next_segment
        if left <= 0:
            return done
        valid = len(self._frames)
        padded = np.full((left * SEGMENT_FRAMES, NUM_BINS), LOG_FLOOR, np.float32)
        padded[:valid] = self._frames
        straddling = self._straddling_frames()[: len(padded) - valid]
        padded[valid : valid + len(straddling)] = straddling
        for number, logmel in enumerate(np.split(padded, left)):
            inside = min(max(valid - number * SEGMENT_FRAMES, 0), SEGMENT_FRAMES)
            done.append(Segment(self._next_segment + number, logmel, inside))
        self._next_segment = num_segments
        return done

    def _complete_segments(self) -> list[Segment]:
        done = []
        whole = len(self._frames) // SEGMENT_FRAMES
        for number in range(whole):
            logmel = self._frames[number * SEGMENT_FRAMES : (number + 1) * SEGMENT_FRAMES]
            done.append(Segment(self._next_segment + number, logmel, SEGMENT_FRAMES))
        self._next_segment += whole
        self._frames = self._frames[whole * SEGMENT_FRAMES :]
        return done

    def _straddling_frames(self) -> NDArray[np.float32]:
        """Frames that begin in the audio and end after it."""
        tail = self._stream.tail
        if len(tail) == 0:
            return np.zeros((0, NUM_BINS), np.float32)
        # The last chunk begins one hop before the hop that is being filled, or is the only one.
        valid_samples = self.num_samples % HOP_SAMPLES + min(
            HOP_SAMPLES, self.num_samples // HOP_SAMPLES * HOP_SAMPLES
        )
        mean = np.float32(sum(self._hop_sums) / valid_samples)
        centred = np.concatenate((tail - mean, np.zeros(FRAME_LENGTH_SAMPLES, np.float32)))
        return self._logmel.frames(centred)[: -(-len(tail) // FRAME_SHIFT_SAMPLES)]

    def _add_to_sums(self, samples: NDArray[np.float32]) -> None:
        while len(samples):
            room = HOP_SAMPLES - self.num_samples % HOP_SAMPLES
            part, samples = samples[:room], samples[room:]
            self._hop_sums[1] += float(part.sum(dtype=np.float64))
            self.num_samples += len(part)
            if len(part) == room:
                self._hop_sums = [self._hop_sums[1], 0.0]


def segments_of_blocks(
    blocks: Iterable[NDArray[np.float32]],
    short_recordings: ShortRecordings = "pad",
    logmel: LogMel | None = None,
) -> Iterator[Segment]:
    """Segments of a recording that is handed in as blocks of samples."""
    stream = SegmentStream(short_recordings, logmel)
    for block in blocks:
        yield from stream.push(block)
    yield from stream.finish()


def assemble_chunk(first: NDArray, second: NDArray, tail: Tail = "real") -> NDArray:
    """Two neighbouring (512, F) segments -> the (1024, F) chunk.

    "zeros" sets the last two frames to 0 before normalisation, as AudioMAE pads (`paper`); "real" keeps the
    audio. Quantised segments cannot hold that 0: dequantise first, or let Normalisation do it.
    """
    chunk = np.concatenate((first, second))
    if tail == "zeros":
        assert np.issubdtype(chunk.dtype, np.floating), (
            "a quantised chunk has no exact zero: dequantise it first"
        )
        chunk[-TAIL_FRAMES:] = 0
    return chunk


def boxes_of_chunks(
    boxes: NDArray[np.float64], num_chunks: int, shortest_remnant_frames: float = SHORTEST_REMNANT_FRAMES
) -> ChunkBoxes:
    """(N, 4) boxes of a recording -> those of all its chunks: every box goes into
    every chunk it touches, clipped.

    A remnant that a border cut to under 100 ms is dropped; a call that is
    naturally that short is kept.
    """
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    first = np.maximum(np.floor((boxes[:, 0] - CHUNK_FRAMES) / SEGMENT_FRAMES).astype(np.int64) + 1, 0)
    last = np.minimum(np.ceil(boxes[:, 2] / SEGMENT_FRAMES).astype(np.int64) - 1, num_chunks - 1)
    counts = np.maximum(last - first + 1, 0)
    origin = np.repeat(np.arange(len(boxes)), counts)
    place = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)
    chunk = first[origin] + place
    corners = boxes[origin]
    corners[:, 0::2] -= chunk[:, None] * SEGMENT_FRAMES
    length = corners[:, 2] - corners[:, 0]
    corners[:, 0::2] = np.clip(corners[:, 0::2], 0, CHUNK_FRAMES)
    corners[:, 1::2] = np.clip(corners[:, 1::2], 0, NUM_BINS)
    clipped = corners[:, 2] - corners[:, 0]
    keep = (clipped == length) | (clipped >= shortest_remnant_frames)
    order = np.flatnonzero(keep)[np.lexsort((origin[keep], chunk[keep]))]
    return ChunkBoxes(chunk[order], origin[order], corners[order])
