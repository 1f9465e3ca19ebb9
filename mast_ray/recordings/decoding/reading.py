"""Recordings as mono float32 blocks at one rate, read in bounded memory whatever their length.

    with open_recording(path) as reading:
        for samples in reading.blocks(block_s=60.0):
            ...
        print(reading.duration_s, reading.salvage, reading.fingerprint)

Sample n of the output lies at n / sample_rate_hz seconds of the file, at hour 24 as at second 1, and the
samples do not depend on `block_s`. Which faults are salvaged and which rejected: see faults.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

import numpy as np
import soxr
from numpy.typing import NDArray

from mast_ray.recordings.decoding.decoders import Decoder
from mast_ray.recordings.decoding.faults import Fault, Reason, Salvage, UnreadableRecording
from mast_ray.recordings.decoding.headers import Header, check_rate_and_channels
from mast_ray.recordings.decoding.inspection import Source, opened, read_header

Samples = NDArray[np.float32]
Channel = Literal["mean"] | int

SAMPLE_RATE_HZ = 16_000
LOUDEST = 1e6  # beyond any scaling of real sound: such samples are garbage
CANCELLED = 0.02  # of the energy that the mean of independent channels keeps
STRETCH_S, LEAST_LOST_S = 5.0, 10.0  # what is judged at once, and what is lost before it is said
AT_ONCE = 8192  # frames, of which offsets are taken
FAINTEST = 2.0**-30  # mean square of one step of 16 bits: below it a channel is silent


@dataclass(frozen=True)
class Limits:
    """What is still taken for a recording."""

    min_rate_hz: int = 8_000
    max_rate_hz: int = 1_000_000
    min_duration_s: float = 0.025  # one analysis window
    max_duration_s: float = 7 * 86_400.0
    max_expansion: float = 200.0  # 16-bit PCM bytes per byte of file; digital silence in FLAC gives thousands
    min_bomb_bytes: int = 64 << 20  # what unfolds to less than this is no bomb


DEFAULT_LIMITS = Limits()
ANY_RATE = Limits(min_rate_hz=1)  # for looking at what was taken with a lower audio.min_sample_rate_hz


@dataclass(frozen=True)
class RecordingInfo:
    """What is known before decoding."""

    container: str  # WAV, AIFF, FLAC, OGG, MP3
    codec: str  # PCM_16, VORBIS, ...
    sample_rate_hz: int
    num_channels: int
    num_bytes: int
    declared_frames: int | None  # as the header says; None where it does not
    readable_frames: int | None  # as the file's size says (WAV, AIFF), else as declared
    fault: Fault | None  # seen without decoding; the recording is salvageable
    header: Header  # embedded texts (GUANO, comment) for clock.py

    @property
    def duration_s(self) -> float | None:
        """Seconds that can be expected; decoding has the last word."""
        return None if self.readable_frames is None else self.readable_frames / self.sample_rate_hz


def mean_of(piece: Samples) -> Samples:
    """(frames, channels) -> (frames,); of two channels the same numbers ten times as fast."""
    if piece.shape[1] == 1:
        return piece[:, 0]
    if piece.shape[1] == 2:
        return (piece[:, 0] + piece[:, 1]) / np.float32(2)
    return piece.mean(axis=1, dtype=np.float32)


class _Mean:
    """The mean of several channels, and how much of their sound it keeps, over all and in stretches. A constant offset is no
    sound.
    """

    def __init__(self, num_channels: int, rate_hz: int) -> None:
        self._num_channels, self._rate_hz = num_channels, rate_hz
        self._all, self._here = np.zeros(3), np.zeros(3)  # frames, energy of the channels, of the mean
        self._first_s, self._lost_s = 0.0, 0.0  # of stretches in which they cancel

    def listen(self, piece: Samples, mono: Samples) -> None:
        """Products alone, which take a tenth of what the mean does; few samples at once, for digits enough."""
        if self._num_channels == 1:
            return
        ones = np.ones(AT_ONCE, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for begin in range(0, len(mono), AT_ONCE):
                mean = mono[begin : begin + AT_ONCE]
                channels = np.ascontiguousarray(piece[begin : begin + len(mean)])
                flat, sums = channels.reshape(-1), (ones[: len(mean)] @ channels).astype(np.float64)
                of_channels = float(flat @ flat) - float(sums @ sums) / len(mean)
                of_mean = float(mean @ mean) - float(sums.mean()) ** 2 / len(mean)
                self._here += (len(mean), of_channels, of_mean)
                if self._here[0] >= STRETCH_S * self._rate_hz:
                    self._end_stretch()

    def _end_stretch(self) -> None:
        if self._is_lost(self._here):
            self._first_s = self._first_s if self._lost_s else float(self._all[0]) / self._rate_hz
            self._lost_s += float(self._here[0]) / self._rate_hz
        self._all += self._here
        self._here[:] = 0

    def _is_lost(self, sums: NDArray[np.float64]) -> bool:
        num_frames, of_channels, of_mean = sums
        each = of_channels / self._num_channels
        return bool(each > FAINTEST * num_frames and of_mean <= CANCELLED / self._num_channels * each)

    def fault(self) -> Fault | None:
        """Once all is listened to."""
        self._end_stretch()
        kept = f"under {100 * CANCELLED / self._num_channels:.2g} % of their sound is in their mean"
        if self._is_lost(self._all):
            return Fault(Reason.CHANNELS_CANCEL, f"{self._num_channels} channels in opposite phase: {kept}")
        if self._lost_s < LEAST_LOST_S:
            return None
        all_s = self._all[0] / self._rate_hz
        detail = f"{self._num_channels} channels in opposite phase in {self._lost_s:.0f} of {all_s:.0f} s, from {self._first_s:.0f} s on: {kept} there"
        return Fault(Reason.CHANNELS_CANCEL, detail)


class Reading:
    """One pass over one recording. `blocks()` is run once; the other results are
    complete when it has ended.
    """

    def __init__(
        self,
        info: RecordingInfo,
        decoder: Decoder,
        resources: ExitStack,
        limits: Limits,
        channel: Channel,
    ) -> None:
        self.info = info
        self.num_samples = 0  # output samples
        self.peak = 0.0
        self.salvage: Salvage | None = None
        self._decoder, self._resources, self._limits, self._channel = decoder, resources, limits, channel
        self._digest = hashlib.sha1(usedforsecurity=False)
        self._fault = info.fault
        self._mean = _Mean(info.num_channels, info.sample_rate_hz)

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def duration_s(self) -> float:
        return self.num_samples / SAMPLE_RATE_HZ

    @property
    def fingerprint(self) -> str:
        """Of the sound, not of the file: equal for the same samples under another
        name, header or lossless codec.
        """
        return self._digest.hexdigest()

    def blocks(self, block_s: float = 60.0) -> Iterator[Samples]:
        """Mono float32 blocks of exactly `block_s` seconds, the last one shorter.

        Raises UnreadableRecording before the first block, or (a bomb that lied in its header) in the middle.
        """
        block_samples = max(1, round(block_s * SAMPLE_RATE_HZ))
        pending: list[Samples] = []
        num_pending = 0
        for piece in self._resampled():
            pending.append(piece)
            num_pending += len(piece)
            if num_pending < block_samples:
                continue
            joined = np.concatenate(pending)
            whole = len(joined) - len(joined) % block_samples
            for start in range(0, whole, block_samples):
                yield self._counted(joined[start : start + block_samples])
            pending, num_pending = [joined[whole:]], len(joined) - whole
        rest = np.concatenate(pending) if pending else np.zeros(0, np.float32)
        self._finish(self.num_samples + len(rest))
        if len(rest):
            yield self._counted(rest)

    def _counted(self, block: Samples) -> Samples:
        self._digest.update(np.rint(np.clip(block, -1.0, 1.0) * 32767.0).astype("<i2").tobytes())
        self.peak = max(self.peak, float(np.abs(block).max(initial=0.0)))
        self.num_samples += len(block)
        return block

    def _finish(self, num_samples: int) -> None:
        fault = self._fault or self._decoder.fault
        if num_samples < self._limits.min_duration_s * SAMPLE_RATE_HZ:
            if fault is not None:
                raise UnreadableRecording(fault.reason, f"nothing can be salvaged: {fault.detail}")
            raise UnreadableRecording(
                Reason.TOO_SHORT,
                f"{num_samples / SAMPLE_RATE_HZ:.3g} s of sound, under the {self._limits.min_duration_s:g} s of "
                "audio.min_seconds",
            )
        if (cancelled := self._mean.fault()) is not None:
            fault = replace(cancelled, detail=f"{cancelled.detail}; {fault.detail}") if fault else cancelled
        if fault is not None:
            readable_s = num_samples / SAMPLE_RATE_HZ - self._decoder.lost_frames / self.info.sample_rate_hz
            self.salvage = Salvage(fault.reason, fault.detail, readable_s)

    def _resampled(self) -> Iterator[Samples]:
        rate_hz = self.info.sample_rate_hz
        if rate_hz == SAMPLE_RATE_HZ:
            yield from self._mono()
            return
        stream = soxr.ResampleStream(rate_hz, SAMPLE_RATE_HZ, 1, dtype="float32", quality="HQ")
        for piece in self._mono():
            yield stream.resample_chunk(piece)
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def _mono(self) -> Iterator[Samples]:
        """Checked mono samples at the recording's own rate, up to the first fault."""
        num_frames = 0
        for piece in self._decoder.pieces():  # (frames, channels)
            num_frames += len(piece)
            self._refuse_bomb(num_frames)
            if self._channel == "mean":
                mono = mean_of(piece)
            else:
                mono = piece[:, self._channel]
            mono = np.ascontiguousarray(mono)
            if not np.abs(mono).max(initial=0.0) <= LOUDEST:  # also true for NaN
                first = int(np.argmax(~(np.abs(mono) <= LOUDEST)))
                at_s = (num_frames - len(piece) + first) / self.info.sample_rate_hz
                self._fault = self._fault or Fault(
                    Reason.NON_FINITE, f"a sample that is no number at {at_s:.3f} s"
                )
                self._weigh(piece, mono[:first])
                yield mono[:first]
                return
            self._weigh(piece, mono)
            yield mono

    def _weigh(self, piece: Samples, mono: Samples) -> None:
        if self._channel == "mean":
            self._mean.listen(piece, mono)

    def _refuse_bomb(self, num_frames: int) -> None:
        refuse_bomb(num_frames, self.info, self._limits)


def refuse_bomb(num_frames: int, info: RecordingInfo, limits: Limits) -> None:
    """Stop at a length or an expansion that no recorder produces."""
    duration_s = num_frames / info.sample_rate_hz
    if duration_s > limits.max_duration_s:
        raise UnreadableRecording(
            Reason.TOO_LONG,
            f"{duration_s / 3600:.0f} h of sound; the limit is {limits.max_duration_s / 3600:.0f} h",
        )
    num_bytes = num_frames * info.num_channels * 2
    if num_bytes > max(limits.min_bomb_bytes, limits.max_expansion * info.num_bytes):
        detail = f"{info.num_bytes} bytes unfold to more than {num_bytes} bytes of sound"
        raise UnreadableRecording(Reason.DECOMPRESSION_BOMB, detail)


def open_recording(
    source: Source,
    *,
    channel: Channel = "mean",
    limits: Limits = DEFAULT_LIMITS,
) -> Reading:
    """Check a recording (a local path, or a seekable binary file from any store)
    and make it ready to be read.
    """
    with ExitStack() as resources:
        file = resources.enter_context(opened(source))
        info, decoder = _inspected(file, limits)
        resources.callback(decoder.close)
        if channel != "mean" and not 0 <= channel < info.num_channels:
            raise UnreadableRecording(
                Reason.NO_CHANNELS, f"channel {channel} is wanted, there are {info.num_channels}"
            )
        return Reading(info, decoder, resources.pop_all(), limits, channel)
    raise AssertionError("unreachable")


def probe(source: Source, *, limits: Limits = DEFAULT_LIMITS) -> RecordingInfo:
    """Everything the header and the file's size say; raises UnreadableRecording
    for what cannot be salvaged.
    """
    with opened(source) as file:
        info, decoder = _inspected(file, limits)
        decoder.close()
        return info


def read_blocks(
    source: Source,
    *,
    block_s: float = 60.0,
    channel: Channel = "mean",
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[Samples]:
    """The blocks of `open_recording(...)` where nobody asks for salvage or fingerprint."""
    with open_recording(source, channel=channel, limits=limits) as reading:
        yield from reading.blocks(block_s)


def _inspected(file: BinaryIO, limits: Limits) -> tuple[RecordingInfo, Decoder]:
    header = read_header(file)
    if header.sample_rate_hz is not None and header.num_channels is not None:
        check_rate_and_channels(
            header.sample_rate_hz, header.num_channels, limits.min_rate_hz, limits.max_rate_hz
        )
    decoder = Decoder(file, header)
    try:
        info = RecordingInfo(
            container=header.container,
            codec=decoder.codec,
            sample_rate_hz=decoder.sample_rate_hz,
            num_channels=decoder.num_channels,
            num_bytes=header.num_bytes,
            declared_frames=header.declared_frames if header.container != "OGG" else decoder.stated_frames,
            readable_frames=decoder.expected_frames,
            fault=header.fault,
            header=header,
        )
        check_rate_and_channels(
            info.sample_rate_hz, info.num_channels, limits.min_rate_hz, limits.max_rate_hz
        )
        refuse_bomb(info.readable_frames or 0, info, limits)
    except BaseException:
        decoder.close()
        raise
    return info, decoder
