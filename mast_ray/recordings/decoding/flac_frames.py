"""Where a FLAC really ends: its header may state less than it holds (a recorder that never came back to it), and the decoder
stops there without a word. Every frame says which one it is.
"""

from __future__ import annotations

import re
from typing import BinaryIO

from mast_ray.recordings.decoding.headers import read_at
from mast_ray.recordings.decoding.views import SplicedFile

MARKER = b"fLaC"
STATED = slice(18, 26)  # rate, channels, bits per sample, and in the lowest 36 bits the number of samples
TAIL_BYTES = 1 << 18  # holds several frames: the longest are some 4,600 samples of 24 bits on eight channels
_SYNC = re.compile(rb"(?=\xff[\xf8\xf9])", re.DOTALL)


def last_known_sample(file: BinaryIO, num_bytes: int) -> int:
    """The first sample of the last frame that follows on another one in the end of a file; -1 where no two do."""
    start = read_at(file, 0, STATED.stop)
    if not start.startswith(MARKER) or len(start) < STATED.stop:
        return -1
    block = int.from_bytes(start[10:12], "big")  # samples of a frame, where all have the same number
    offset = max(0, num_bytes - TAIL_BYTES)
    tail = read_at(file, offset, num_bytes - offset)
    before, last = -1, -1
    for match in _SYNC.finditer(tail):
        header = tail[match.start() : match.start() + 16]
        number = _number_of(header)
        if number is None:
            continue
        at = number if header[1] & 1 else number * block
        if before >= 0 and 0 < at - before <= max(
            block, 1 << 16
        ):  # sync bytes come by chance too, and lead nowhere
            last = at
        before = at
    return last


def without_stated_length(file: BinaryIO, num_bytes: int) -> SplicedFile:
    """The file with a header that states no number of samples: a decoder reads it to its end."""
    start = read_at(file, 0, STATED.stop)
    packed = int.from_bytes(start[STATED], "big") >> 36 << 36
    prefix = start[: STATED.start] + packed.to_bytes(8, "big")
    return SplicedFile(prefix, file, STATED.stop, num_bytes - STATED.stop)


def _number_of(header: bytes) -> int | None:
    """Number of the frame (or of its first sample) that a frame header states; None where these bytes are none."""
    if len(header) < 6 or header[2] >> 4 == 0 or header[2] & 15 == 15 or header[3] >> 4 > 10 or header[3] & 1:
        return None
    ones = 8 - (header[4] ^ 0xFF).bit_length()  # as in UTF-8: how many bytes the number takes
    if ones == 1 or ones > 7:
        return None
    length = max(1, ones)
    end = 4 + length
    number = header[4] & (0x7F >> ones)
    for byte in header[5:end]:
        if byte >> 6 != 2:
            return None
        number = number << 6 | byte & 0x3F
    end += {6: 1, 7: 2}.get(header[2] >> 4, 0) + {12: 1, 13: 2, 14: 2}.get(header[2] & 15, 0)
    return number if end < len(header) and _crc8(header[:end]) == header[end] else None


def _crc8(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1) ^ (0x107 if value & 0x80 else 0)
    return value
