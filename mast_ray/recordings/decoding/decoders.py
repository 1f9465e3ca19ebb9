"""A recording as a stream of pieces: never more than a few MB at a time, and past a
damaged stretch where the format allows.

libsndfile decodes. Through its callbacks it reads 8 KiB at a time, each read taking Python's lock: sixteen
decoding threads spend their time passing it on. So the samples of a plain WAV are read from the file as they
are, and a local FLAC is opened by its path; callbacks remain for remote and for damaged files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from mast_ray.recordings.decoding.faults import Fault, Reason, UnreadableRecording
from mast_ray.recordings.decoding.flac_frames import last_known_sample, without_stated_length
from mast_ray.recordings.decoding.headers import Header
from mast_ray.recordings.decoding.views import SplicedFile, WatchedFile
from mast_ray.recordings.decoding.wav_headers import wav_prefix

PIECE_SAMPLES = 1 << 20  # 4 MiB of float32 over all channels
FINE_FRAMES = 1024  # step of the last good frames before a damaged stretch
RESUME_AFTER_FRAMES = tuple(
    4096 * step for step in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128)
)  # a FLAC frame is about 4096
MAX_DAMAGED_STRETCHES = 100
SIZE_FAULTS = (Reason.DATA_SIZE_ZERO, Reason.DATA_SIZE_UNKNOWN)
PACKED_TYPES = {
    "PCM_16": "<i2",
    "PCM_24": "u1",
    "PCM_32": "<i4",
    "FLOAT": "<f4",
}  # libsndfile's name -> bytes as stored
MISSING_TOLERANCE_S = 0.25  # encoder delay and padding of MP3


class _Stream(soundfile.SoundFile):
    """soundfile seeks after every read of a seekable file, which costs MP3 its bit
    reservoir: say it is not one.
    """

    def seekable(self) -> bool:
        return False


class Decoder:
    """Pieces (frames, channels) of one file. `fault` and `lost_frames` are
    complete when `pieces()` has ended.
    """

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._file, self._header = file, header
        self._is_direct = self._is_understated = False
        self._watched, self._stream = self._open(is_direct=header.container == "FLAC")
        self.fault: Fault | None = None
        self.lost_frames = 0  # replaced by zeros inside the recording
        self.codec: str = self._stream.subtype
        self.sample_rate_hz: int = self._stream.samplerate
        self.num_channels: int = self._stream.channels
        stated = self._stream.frames
        self.stated_frames = (
            stated if 0 <= stated < 1 << 48 else None
        )  # a FLAC of unknown length states 2^63 - 1

    @property
    def expected_frames(self) -> int | None:
        body = self._header.body
        if body is not None and body.num_frames is not None:
            return body.num_frames
        return self._header.declared_frames or self.stated_frames

    def close(self) -> None:
        self._stream.close()

    def pieces(self) -> Iterator[NDArray[np.float32]]:
        """All readable pieces in order; damaged stretches of FLAC come as zeros of the same length."""
        position = 0  # frames given out
        num_stretches = 0
        step = max(1, PIECE_SAMPLES // self.num_channels)
        end = self._header.body.num_frames if self._header.body is not None else None
        is_packed = self._is_packed()
        while end is None or position < end:
            wanted = step if end is None else min(step, end - position)
            try:
                piece = self._read_packed(position, wanted) if is_packed else self._read(wanted)
            except soundfile.LibsndfileError as error:
                good = yield from self._last_good_pieces(position)
                position += good
                num_stretches += 1
                skipped = self._resume_after(position) if num_stretches <= MAX_DAMAGED_STRETCHES else None
                if skipped is None:
                    self.fault = self.fault or self._fault_at(position, error)
                    return
                detail = f"a damaged stretch at {position / self.sample_rate_hz:.3f} s was replaced by zeros"
                self.fault = self.fault or Fault(Reason.CORRUPT_STREAM, detail)
                self.lost_frames += skipped
                position += skipped
                for start in range(0, skipped, step):
                    yield np.zeros((min(step, skipped - start), self.num_channels), np.float32)
                continue
            if len(piece) == 0:
                if self._is_direct and position < (self.expected_frames or 0) and self._reopen(position):
                    # read on through the watched file: a storage error must not pass for an early end
                    continue
                if self._goes_on(position):
                    continue
                break
            position += len(piece)
            yield piece
        self._note_missing(position)

    def _is_packed(self) -> bool:
        """Whether the samples lie in the file as numpy reads them."""
        body, stored = self._header.body, PACKED_TYPES.get(self.codec)
        if self._header.container != "WAV" or body is None or not body.format_chunk or stored is None:
            return False
        return body.frame_bytes == self.num_channels * (3 if stored == "u1" else np.dtype(stored).itemsize)

    def _read_packed(self, position: int, num_frames: int) -> NDArray[np.float32]:
        """(frames, channels) from the body itself: the numbers libsndfile gives"""
        body, stored = self._header.body, PACKED_TYPES[self.codec]
        assert body is not None and body.frame_bytes is not None
        self._file.seek(body.offset + position * body.frame_bytes)
        parts, wanted = [], num_frames * body.frame_bytes
        while wanted and (part := self._file.read(wanted)):  # a remote file may return less than asked for
            parts.append(part)
            wanted -= len(part)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        count = len(data) // body.frame_bytes * self.num_channels
        if stored == "u1":  # 24 bits: the upper three bytes of 32
            widened = np.zeros((count, 4), np.uint8)
            widened[:, 1:] = np.frombuffer(data, np.uint8, count * 3).reshape(-1, 3)
            raw = widened.view("<i4").reshape(-1)
        else:
            raw = np.frombuffer(data, stored, count)
        samples = raw.astype(np.float32)
        if raw.dtype.kind == "i":
            samples *= np.float32(1.0 / (1 << (8 * raw.dtype.itemsize - 1)))
        return samples.reshape(-1, self.num_channels)

    def _open(self, start_frame: int = 0, is_direct: bool = False) -> tuple[WatchedFile, _Stream]:
        watched = WatchedFile(self._view())
        path = getattr(self._file, "name", None)
        self._is_direct = (
            is_direct and isinstance(self._file, io.BufferedReader) and isinstance(path, str | Path)
        )
        try:
            # in bytes: soundfile refuses a name that is not UTF-8
            stream = _Stream(os.fsencode(path) if self._is_direct and path is not None else watched)
            if start_frame:
                stream.seek(start_frame)
        except soundfile.LibsndfileError as error:
            watched.raise_if_failed()
            raise UnreadableRecording(
                Reason.CORRUPT_STREAM, f"the decoder refuses it: {error.error_string}"
            ) from error
        watched.raise_if_failed()
        return watched, stream

    def _view(self) -> BinaryIO | SplicedFile:
        """The file as the decoder should see it: a WAV of unknown size under a new
        header, an MP3 without its tag.
        """
        body, fault = self._header.body, self._header.fault
        if body is not None and body.format_chunk and fault is not None and fault.reason in SIZE_FAULTS:
            return SplicedFile(wav_prefix(body), self._file, body.offset, body.num_bytes)
        if body is not None and self._header.container == "MP3" and body.offset:
            return SplicedFile(b"", self._file, body.offset, body.num_bytes)
        if self._is_understated:
            return without_stated_length(self._file, self._header.num_bytes)
        self._file.seek(0)
        return self._file

    def _read(self, num_frames: int) -> NDArray[np.float32]:
        try:
            piece = self._stream.read(num_frames, dtype="float32", always_2d=True)
        finally:
            self._watched.raise_if_failed()  # a storage error is not a fault of the recording
        return piece

    def _reopen(self, start_frame: int) -> bool:
        self._stream.close()
        try:
            self._watched, self._stream = self._open(start_frame)
        except UnreadableRecording:
            return False
        return True

    def _goes_on(self, position: int) -> bool:
        """Whether a FLAC holds more than its header states; the stream goes on there then."""
        stated = self._header.declared_frames
        if self._header.container != "FLAC" or self._is_understated or stated is None or position < stated:
            return False
        if last_known_sample(self._file, self._header.num_bytes) < position:
            return False
        self._is_understated = True
        detail = f"the header states {stated / self.sample_rate_hz:.3f} s, and the file goes on"
        self.fault = self.fault or Fault(Reason.DATA_SIZE_UNKNOWN, detail)
        return self._reopen(position)

    def _last_good_pieces(self, position: int):  # type: ignore[no-untyped-def]
        """Give out what can be decoded after `position` in small steps; returns its number of frames."""
        good = 0
        if self._reopen(position):
            try:
                while len(piece := self._read(FINE_FRAMES)):
                    good += len(piece)
                    yield piece
            except soundfile.LibsndfileError:
                pass
        return good

    def _resume_after(self, position: int) -> int | None:
        """Open the stream behind a damaged stretch of FLAC; returns how many frames were skipped."""
        declared = self._header.declared_frames
        if self._header.container != "FLAC" or declared is None:
            return None
        for skipped in RESUME_AFTER_FRAMES:
            target = position + skipped
            if target >= declared:
                return None
            if not self._reopen(target):
                continue
            try:
                if len(self._read(FINE_FRAMES)) and self._reopen(target):
                    return skipped
            except soundfile.LibsndfileError:
                continue
        return None

    def _fault_at(self, position: int, error: soundfile.LibsndfileError) -> Fault:
        at_s = position / self.sample_rate_hz
        if self._watched.hit_end:
            return Fault(Reason.TRUNCATED, f"the file ends at {at_s:.3f} s")
        return Fault(Reason.CORRUPT_STREAM, f"cannot be decoded beyond {at_s:.3f} s: {error.error_string}")

    def _note_missing(self, position: int) -> None:
        """Fewer frames than promised, though the decoder reported no error."""
        promised = self._header.declared_frames
        reason = Reason.TRUNCATED
        # a page that failed its checksum is left out; later times are early
        if self._header.container == "OGG":
            promised, reason = self.stated_frames, Reason.CORRUPT_STREAM
        if self.fault is not None or promised is None or self._header.container in ("WAV", "AIFF"):
            return
        missing_s = (promised - position) / self.sample_rate_hz
        tolerance_s = MISSING_TOLERANCE_S if self._header.container == "MP3" else 0.0
        if missing_s > tolerance_s:
            self.fault = Fault(reason, f"{missing_s:.3f} s of the declared length are missing")
