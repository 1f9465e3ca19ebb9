"""Frame headers of MPEG layers II and III, enough to find where the sound begins.

A single sync pattern occurs by chance in tags and pictures: a start counts only when
the frames that follow agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass

_RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # by version bits
_KBITS_MPEG1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBITS_MPEG1_LAYER2 = (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
_KBITS_MPEG2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # of both layers
_LAYER2, _LAYER3 = 2, 1  # as they stand in a header
AGREEING_FRAMES = 3


@dataclass(frozen=True)
class Mp3Frame:
    sample_rate_hz: int
    num_bytes: int  # header included
    num_samples: int  # per channel
    tag_offset: int  # where a Xing or Info tag would stand


def parse_mp3_frame(head: bytes) -> Mp3Frame | None:
    """The frame that begins with these four bytes, or None if none can."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer, bitrate, rate = (head[1] >> 3) & 3, (head[1] >> 1) & 3, head[2] >> 4, (head[2] >> 2) & 3
    if version == 1 or layer not in (_LAYER2, _LAYER3) or bitrate in (0, 15) or rate == 3:
        return None
    is_mpeg1, is_mono, padding = version == 3, head[3] >> 6 == 3, (head[2] >> 1) & 1
    rate_hz = _RATES_HZ[version][rate]
    if layer == _LAYER2:
        kbits = (_KBITS_MPEG1_LAYER2 if is_mpeg1 else _KBITS_MPEG2)[bitrate]
        return Mp3Frame(rate_hz, 144 * kbits * 1000 // rate_hz + padding, 1152, 4)
    kbits = (_KBITS_MPEG1 if is_mpeg1 else _KBITS_MPEG2)[bitrate]
    num_bytes = (144 if is_mpeg1 else 72) * kbits * 1000 // rate_hz + padding
    side_bytes = (17 if is_mono else 32) if is_mpeg1 else (9 if is_mono else 17)
    return Mp3Frame(rate_hz, num_bytes, 1152 if is_mpeg1 else 576, 4 + side_bytes)


def first_mp3_frame(content: bytes) -> tuple[int, Mp3Frame] | None:
    """Offset of the first frame that is followed by others of its rate (or by the end of `content`)."""
    start = content.find(b"\xff")
    while start >= 0:
        frame = parse_mp3_frame(content[start : start + 4])
        if frame is not None and _is_followed(content, start, frame):
            return start, frame
        start = content.find(b"\xff", start + 1)
    return None


def _is_followed(content: bytes, start: int, frame: Mp3Frame) -> bool:
    position, current = start, frame
    for count in range(1, AGREEING_FRAMES + 1):
        position += current.num_bytes
        if position + 4 > len(content):
            return count > 1 or position == len(content)
        following = parse_mp3_frame(content[position : position + 4])
        if following is None or following.sample_rate_hz != frame.sample_rate_hz:
            return False
        current = following
    return True
