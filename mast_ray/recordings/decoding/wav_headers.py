"""The chunks of a WAV (RIFF, RIFX, RF64), walked and checked against the size of the file.

libsndfile is silent about a truncated body, a data size of 0 and a tail that was
never written. Sizes are bytes.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import BinaryIO

from mast_ray.recordings.decoding.faults import Fault, Reason, UnreadableRecording
from mast_ray.recordings.decoding.headers import Body, Header, check_rate_and_channels, decoded_text, read_at

MAX_CHUNKS = 4096
MAX_METADATA_BYTES = 1 << 20
ZERO_TAIL_S = 1.0  # a live microphone never gives a whole second of exact zeros
LEAST_BEHIND_BYTES = 1 << 14  # less behind the samples is padding or a tag
UNKNOWN_SIZES = (0x7FFFF000, 0xFFFFFFFF)  # and all between: what pipes and interrupted recorders write
FIXED_SIZE_CODECS = {
    1: None,
    3: None,
    6: 1,
    7: 1,
}  # WAVE format tag -> bytes per sample (None: from the bit depth)
_CHUNKS_BESIDE_DATA = (
    b"LIST",
    b"guan",
    b"id3 ",
    b"ID3 ",
    b"bext",
    b"cue ",
    b"PEAK",
    b"JUNK",
    b"iXML",
    b"wamd",
)


def wav_header(file: BinaryIO, start: bytes, num_bytes: int) -> Header:
    """Walk all chunks, also those behind the samples: GUANO and comments may stand there."""
    order = ">" if start[:4] == b"RIFX" else "<"
    header = Header("WAV", num_bytes)
    format_chunk = b""
    large_data_bytes: int | None = None
    declared_bytes = 0
    body: Body | None = None
    fault: Fault | None = None
    position, num_chunks = 12, 0
    while position + 8 <= num_bytes and num_chunks < MAX_CHUNKS:
        chunk_id, size = struct.unpack(order + "4sI", read_at(file, position, 8))
        content, num_chunks = position + 8, num_chunks + 1
        if chunk_id == b"data" and body is None:
            is_large = size == 0xFFFFFFFF and large_data_bytes is not None
            declared_bytes = large_data_bytes if is_large and large_data_bytes is not None else size
            body, fault = _wav_body(file, content, declared_bytes, num_bytes, is_large)
            position = content + body.num_bytes + body.num_bytes % 2
            continue
        wanted = min(size, MAX_METADATA_BYTES, num_bytes - content)
        match chunk_id:
            case b"fmt " if not format_chunk:
                format_chunk = read_at(file, content, wanted)
            case b"ds64" if size >= 24:
                large_data_bytes = int.from_bytes(read_at(file, content + 8, 8), "little")
            case b"guan":
                header = replace(header, guano=decoded_text(read_at(file, content, wanted)))
            case b"LIST":
                header = _with_info_texts(header, read_at(file, content, wanted), order)
        position = content + size + size % 2
    if body is None or len(format_chunk) < 14:
        raise UnreadableRecording(
            Reason.HEADER_ONLY, f"a WAV of {num_bytes} bytes without {'fmt' if body else 'data'} chunk"
        )
    return _wav_with_format(file, header, body, declared_bytes, fault, format_chunk, order)


def _wav_body(
    file: BinaryIO, offset: int, declared: int, num_bytes: int, is_large: bool
) -> tuple[Body, Fault | None]:
    available = num_bytes - offset
    if available == 0:
        raise UnreadableRecording(Reason.HEADER_ONLY, "the file ends where the samples should begin")
    if declared == 0:
        if read_at(file, offset, 4) in _CHUNKS_BESIDE_DATA:
            raise UnreadableRecording(Reason.HEADER_ONLY, "the data chunk is empty")
        return Body(offset, available, None), Fault(
            Reason.DATA_SIZE_ZERO, "the header says 0 bytes of sound, the file holds more"
        )
    is_unknown = declared == UNKNOWN_SIZES[1] or (declared >= UNKNOWN_SIZES[0] and declared > available)
    if is_unknown and not is_large:
        return Body(offset, available, None), Fault(
            Reason.DATA_SIZE_UNKNOWN, "the header does not say how long the recording is"
        )
    wrapped = available - declared
    if not is_large and wrapped >= 1 << 32 and wrapped % (1 << 32) < MAX_METADATA_BYTES:
        detail = "more than 4 GiB of sound: the size in the header has overflowed"
        return Body(offset, available - wrapped % (1 << 32), None), Fault(Reason.DATA_SIZE_UNKNOWN, detail)
    if wrapped >= LEAST_BEHIND_BYTES and _is_sound(read_at(file, offset + declared, 6), declared % 2):
        detail = f"the header says {declared} bytes of sound, {wrapped} more follow"
        return Body(offset, available, None), Fault(Reason.DATA_SIZE_UNKNOWN, detail)
    return Body(offset, min(declared, available), None), None


def _is_sound(behind: bytes, padding: int) -> bool:
    """Whether what follows the samples is more of them: neither a chunk, which has a name of four letters, nor zeros."""
    names = [behind[at : at + 4] for at in {0, padding}]
    return all(any(name) and not all(32 <= byte < 127 for byte in name) for name in names)


def _wav_with_format(
    file: BinaryIO,
    header: Header,
    body: Body,
    declared_bytes: int,
    fault: Fault | None,
    format_chunk: bytes,
    order: str,
) -> Header:
    """Judge the body by the sample format, and cut a tail that was never written."""
    tag, num_channels, rate_hz, _, block_bytes = struct.unpack_from(order + "HHIIH", format_chunk)
    bits = struct.unpack_from(order + "H", format_chunk, 14)[0] if len(format_chunk) >= 16 else 8
    if tag == 0xFFFE and len(format_chunk) >= 26:
        tag = struct.unpack_from(order + "H", format_chunk, 24)[0]
    header = replace(header, sample_rate_hz=rate_hz, num_channels=num_channels)
    check_rate_and_channels(rate_hz, num_channels, 1, 1 << 31)
    frame_bytes = None
    if tag in FIXED_SIZE_CODECS:
        sample_bytes = FIXED_SIZE_CODECS[tag] or (bits + 7) // 8
        if not 1 <= sample_bytes <= 8:
            raise UnreadableRecording(Reason.BAD_HEADER, f"a WAV of {bits} bits a sample")
        frame_bytes = num_channels * sample_bytes
    body = replace(body, frame_bytes=frame_bytes, format_chunk=format_chunk if order == "<" else b"")
    least = frame_bytes or max(block_bytes, 1)
    if fault is None and declared_bytes - body.num_bytes >= least:
        missing = declared_bytes - body.num_bytes
        fault = Fault(Reason.TRUNCATED, f"{missing} of {declared_bytes} declared bytes of sound are missing")
    if body.num_bytes < least:
        raise UnreadableRecording(
            Reason.HEADER_ONLY, f"{body.num_bytes} bytes of sound: not one whole sample"
        )
    declared = (
        declared_bytes // frame_bytes
        if frame_bytes and (fault is None or fault.reason == Reason.TRUNCATED)
        else None
    )
    body, tail_fault = _without_zero_tail(file, body, rate_hz)
    return replace(header, declared_frames=declared, body=body, fault=fault or tail_fault)


def _without_zero_tail(file: BinaryIO, body: Body, rate_hz: int) -> tuple[Body, Fault | None]:
    """Cut a tail of zero bytes of at least ZERO_TAIL_S, reading backwards from the end."""
    if body.frame_bytes is None:
        return body, None
    step, used = 1 << 16, body.num_bytes
    while used > 0:
        count = min(step, used)
        piece = read_at(file, body.offset + used - count, count).rstrip(b"\0")
        if piece:
            used += len(piece) - count
            break
        used, step = used - count, min(step * 2, 1 << 22)
    if used == 0:
        raise UnreadableRecording(Reason.SILENT, "every sample is exactly zero: nothing was recorded")
    num_frames = -(-used // body.frame_bytes)
    tail_s = (body.num_bytes // body.frame_bytes - num_frames) / rate_hz
    if tail_s < ZERO_TAIL_S:
        return body, None
    fault = Fault(
        Reason.ZERO_TAIL, f"the last {tail_s:.1f} s are exact zeros: reserved space that was never written"
    )
    return replace(body, num_bytes=num_frames * body.frame_bytes), fault


def _with_info_texts(header: Header, content: bytes, order: str) -> Header:
    if content[:4] != b"INFO":
        return header
    texts: dict[bytes, str] = {}
    position = 4
    while position + 8 <= len(content):
        key, size = struct.unpack_from(order + "4sI", content, position)
        texts.setdefault(key, decoded_text(content[position + 8 : position + 8 + size]))
        position += 8 + size + size % 2
    return replace(
        header, comment=texts.get(b"ICMT", header.comment), artist=texts.get(b"IART", header.artist)
    )


def wav_prefix(body: Body) -> bytes:
    """A new header for a WAV body; RF64 where 32 bits do not hold its size."""
    fmt = (
        struct.pack("<4sI", b"fmt ", len(body.format_chunk))
        + body.format_chunk
        + b"\0" * (len(body.format_chunk) % 2)
    )
    if body.num_bytes < (1 << 32) - 1024:
        riff_bytes = 4 + len(fmt) + 8 + body.num_bytes
        return (
            struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE")
            + fmt
            + struct.pack("<4sI", b"data", body.num_bytes)
        )
    sizes = struct.pack(
        "<QQQI", 4 + 36 + len(fmt) + 8 + body.num_bytes, body.num_bytes, body.num_frames or 0, 0
    )
    large = struct.pack("<4sI4s4sI", b"RF64", 0xFFFFFFFF, b"WAVE", b"ds64", len(sizes)) + sizes
    return large + fmt + struct.pack("<4sI", b"data", 0xFFFFFFFF)
