"""The headers of AIFF, FLAC, Ogg and MP3: rate, channels, declared length, and
whether the end was written.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import BinaryIO

from mast_ray.recordings.decoding.faults import Fault, Reason, UnreadableRecording
from mast_ray.recordings.decoding.headers import Body, Header, check_rate_and_channels, read_at
from mast_ray.recordings.decoding.mp3_frames import first_mp3_frame

MAX_CHUNKS = 4096
AIFC_SAMPLE_BYTES = {
    **dict.fromkeys((b"NONE", b"sowt", b"twos", b"in24", b"in32", b"42ni", b"23ni"), None),
    **dict.fromkeys((b"fl32", b"FL32"), 4),
    **dict.fromkeys((b"fl64", b"FL64"), 8),
    **dict.fromkeys((b"raw ", b"ulaw", b"ULAW", b"alaw", b"ALAW"), 1),
}  # uncompressed codecs -> bytes per sample (None: from the bit depth)
MAX_LEADING_BYTES = 1 << 20  # junk tolerated between an ID3 tag and the first frame


def aiff_header(file: BinaryIO, start: bytes, num_bytes: int) -> Header:
    header, body, common = Header("AIFF", num_bytes), None, b""
    position, num_chunks = 12, 0
    while position + 8 <= num_bytes and num_chunks < MAX_CHUNKS:
        chunk_id, size = struct.unpack(">4sI", read_at(file, position, 8))
        content, num_chunks = position + 8, num_chunks + 1
        if chunk_id == b"COMM":
            common = read_at(file, content, min(size, 64))
        elif chunk_id == b"SSND":
            body = Body(content + 8, max(0, min(size - 8, num_bytes - content - 8)), None)
        position = content + size + size % 2
    if body is None or len(common) < 18:
        raise UnreadableRecording(Reason.HEADER_ONLY, "an AIFF without sound chunk")
    num_channels, declared, bits, exponent, mantissa = struct.unpack_from(">HIHHQ", common)
    rate_hz = (
        int(math.ldexp(mantissa, (exponent & 0x7FFF) - 16383 - 63)) if exponent & 0x7FFF < 16383 + 63 else 0
    )
    check_rate_and_channels(rate_hz, num_channels, 1, 1 << 31)
    codec = b"NONE" if start[8:12] == b"AIFF" else common[18:22]
    if codec in AIFC_SAMPLE_BYTES:
        sample_bytes = AIFC_SAMPLE_BYTES[codec] or max(1, (bits + 7) // 8)
        body = replace(body, frame_bytes=num_channels * sample_bytes)
    header = replace(
        header, sample_rate_hz=rate_hz, num_channels=num_channels, declared_frames=declared, body=body
    )
    if not body.num_bytes or not declared:
        raise UnreadableRecording(Reason.HEADER_ONLY, "an AIFF without samples")
    if body.num_frames is not None and body.num_frames < declared:
        detail = f"{declared - body.num_frames} of {declared} declared samples are missing"
        return replace(header, fault=Fault(Reason.TRUNCATED, detail))
    return header


def flac_header(file: BinaryIO, start: bytes, num_bytes: int, offset: int) -> Header:
    if len(start) < 26 or start[4] & 0x7F != 0:
        raise UnreadableRecording(Reason.HEADER_ONLY, "a FLAC file without stream information")
    packed = int.from_bytes(start[18:26], "big")
    rate_hz, num_channels, declared = packed >> 44, ((packed >> 41) & 7) + 1, packed & ((1 << 36) - 1)
    position, is_last = offset + 4, False
    while not is_last and position + 4 <= num_bytes:
        block = read_at(file, position, 4)
        is_last = bool(block[0] & 0x80)
        position += 4 + int.from_bytes(block[1:4], "big")
    if position >= num_bytes:
        raise UnreadableRecording(Reason.HEADER_ONLY, "a FLAC file that ends with its header")
    check_rate_and_channels(rate_hz, num_channels, 1, 1 << 31)
    return Header("FLAC", num_bytes, rate_hz, num_channels, declared or None)


def ogg_header(file: BinaryIO, num_bytes: int) -> Header:
    """The last page of a stream that was written to its end is whole and carries the end-of-stream flag."""
    tail_offset = max(0, num_bytes - (1 << 17))
    tail = read_at(file, tail_offset, num_bytes - tail_offset)
    page = tail.rfind(b"OggS")
    is_whole = False
    if 0 <= page <= len(tail) - 27:
        num_segments = tail[page + 26]
        table = tail[page + 27 : page + 27 + num_segments]
        is_whole = (
            len(table) == num_segments
            and page + 27 + num_segments + sum(table) <= len(tail)
            and bool(tail[page + 5] & 4)
        )
    fault = None if is_whole else Fault(Reason.TRUNCATED, "the Ogg stream stops before its last page")
    return Header("OGG", num_bytes, fault=fault)


def _tag_bytes(start: bytes) -> int:
    """Length of the ID3 tag that begins here; one of version 1 belongs to the end of a file and also stands before it."""
    if start[:4] == b"TAG+":
        return 227
    if start[:3] == b"TAG":
        return 128
    if start[:3] != b"ID3" or len(start) < 10:
        return 0
    size = 0
    for byte in start[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size + (10 if start[5] & 0x10 else 0)


def mp3_header(file: BinaryIO, start: bytes, num_bytes: int) -> Header:
    offset = 0
    while size := _tag_bytes(start):
        offset += size
        start = read_at(file, offset, 64)
    if offset >= num_bytes:
        raise UnreadableRecording(Reason.HEADER_ONLY, "an ID3 tag with no sound behind it")
    head = read_at(file, offset, MAX_LEADING_BYTES)
    if head[:4] == b"fLaC":
        return flac_header(file, head[:64], num_bytes, offset)
    found = first_mp3_frame(head)
    if found is None:
        raise UnreadableRecording(Reason.NOT_AUDIO, "tagged as MP3, but no MP3 frames were found")
    skipped, frame = found
    tag = head[skipped + frame.tag_offset : skipped + frame.tag_offset + 12]
    declared = None
    if tag[:4] in (b"Xing", b"Info") and len(tag) == 12 and tag[7] & 1:
        declared = int.from_bytes(tag[8:12], "big") * frame.num_samples
    start_of_sound = offset + skipped
    return Header(
        "MP3",
        num_bytes,
        declared_frames=declared,
        body=Body(start_of_sound, num_bytes - start_of_sound, None),
    )
