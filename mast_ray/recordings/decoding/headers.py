"""What a header says, and the allow-list of containers by magic bytes: nothing else reaches a decoder.

Sizes are bytes; a frame is one sample of every channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Literal

from mast_ray.recordings.decoding.faults import Fault, Reason, UnreadableRecording
from mast_ray.recordings.decoding.mp3_frames import parse_mp3_frame

Container = Literal["WAV", "AIFF", "FLAC", "OGG", "MP3"]

MAX_CHANNELS = 64

CONVERT_WITH_FFMPEG = "convert it to FLAC or WAV, for example with ffmpeg"


@dataclass(frozen=True)
class Body:
    """Where the sound lies in the file."""

    offset: int
    num_bytes: int
    frame_bytes: int | None  # None: compressed, or packed in blocks of several frames
    format_chunk: bytes = b""  # content of a WAV's fmt chunk, to wrap the body anew

    @property
    def num_frames(self) -> int | None:
        return self.num_bytes // self.frame_bytes if self.frame_bytes else None


@dataclass(frozen=True)
class Header:
    """A checked header; `fault` is one that leaves the body readable."""

    container: Container
    num_bytes: int
    sample_rate_hz: int | None = None  # None: only the decoder knows
    num_channels: int | None = None
    declared_frames: int | None = None  # None: the header does not say
    body: Body | None = None
    fault: Fault | None = None
    guano: str = ""  # text of the guan chunk
    comment: str = ""  # ICMT of a LIST INFO chunk: where AudioMoth writes time, battery and temperature
    artist: str = ""  # IART: AudioMoth's device id


def sniff_container(start: bytes) -> Container:
    """Container by magic bytes; everything that is not on the allow-list is refused with a reason."""
    if start[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        if start[8:12] not in (b"WAVE", b""):
            raise UnreadableRecording(Reason.NOT_AUDIO, f"a RIFF file holding {start[8:12]!r}, not sound")
        return "WAV"
    if start[:4] == b"FORM" and start[8:12] in (b"AIFF", b"AIFC"):
        return "AIFF"
    if start[:4] == b"fLaC":
        return "FLAC"
    if start[:4] == b"OggS":
        return "OGG"
    if start[:3] in (b"ID3", b"TAG") or (start[:1] == b"\xff" and parse_mp3_frame(start) is not None):
        return "MP3"
    raise _refusal(start)


def _refusal(start: bytes) -> UnreadableRecording:
    if start[:4] in (b"\x00\x05\x16\x07", b"\x00\x05\x16\x00"):
        return UnreadableRecording(
            Reason.APPLE_DOUBLE,
            "macOS resource fork (._ file), not the recording itself: ignore or delete it",
        )
    if start[:4] == b"WAac":
        return UnreadableRecording(
            Reason.UNSUPPORTED_FORMAT,
            "Wildlife Acoustics WAC: convert it to WAV with Kaleidoscope (free Lite edition) first",
        )
    if start[4:8] == b"ftyp" or start[:4] in (
        b"wvpk",
        b"MAC ",
        b"caff",
        b".snd",
        b"riff",
        b"NIST",
        b"\x30\x26\xb2\x75",
        b"\x1aE\xdf\xa3",
    ):
        return UnreadableRecording(
            Reason.UNSUPPORTED_FORMAT, f"sound in a container that is not read here: {CONVERT_WITH_FFMPEG}"
        )
    if start[:2] == b"\xff\xf1" or start[:2] == b"\xff\xf9":
        return UnreadableRecording(Reason.UNSUPPORTED_FORMAT, f"AAC: {CONVERT_WITH_FFMPEG}")
    if not start.strip(b"\0"):
        return UnreadableRecording(Reason.NOT_AUDIO, "the file begins with zeros: it was never written")
    looks_like = (
        "text"
        if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start[:32])
        else "no known sound format"
    )
    return UnreadableRecording(Reason.NOT_AUDIO, f"begins with {start[:12]!r}: {looks_like}")


def check_rate_and_channels(
    sample_rate_hz: int, num_channels: int, min_rate_hz: int, max_rate_hz: int
) -> None:
    """Refuse what cannot be resampled to something meaningful."""
    if num_channels < 1:
        raise UnreadableRecording(Reason.NO_CHANNELS, "the header declares no channels")
    if num_channels > MAX_CHANNELS:
        raise UnreadableRecording(Reason.BAD_HEADER, f"the header declares {num_channels} channels")
    if sample_rate_hz < 1:
        raise UnreadableRecording(Reason.NO_SAMPLE_RATE, "the header declares a sample rate of 0")
    if sample_rate_hz < min_rate_hz:
        raise UnreadableRecording(
            Reason.RATE_TOO_LOW,
            f"{sample_rate_hz} Hz is below {min_rate_hz} Hz: --set audio.min_sample_rate_hz={sample_rate_hz} takes it",
        )
    if sample_rate_hz > max_rate_hz:
        raise UnreadableRecording(Reason.RATE_TOO_HIGH, f"{sample_rate_hz} Hz is above {max_rate_hz} Hz")


def read_at(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    pieces = []
    while count > 0 and (piece := file.read(count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def decoded_text(content: bytes) -> str:
    try:
        return content.decode("utf-8").strip("\0 \r\n")
    except UnicodeDecodeError:
        return content.decode("latin-1").strip("\0 \r\n")
