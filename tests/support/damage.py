"""Builders of damaged recordings: one function per class of damage, from sound to the bytes of a file."""

from __future__ import annotations

import io
import struct

import numpy as np
import soundfile

RATE_HZ = 16_000


def noise(
    duration_s: float = 3.0, rate_hz: int = RATE_HZ, num_channels: int = 1, seed: int = 0
) -> np.ndarray:
    """Quiet noise whose 16-bit samples are never zero for long: (frames, channels) float32."""
    shape = (round(duration_s * rate_hz), num_channels)
    return (np.random.default_rng(seed).standard_normal(shape) * 0.1).clip(-1, 1).astype(np.float32)


def encoded(
    samples: np.ndarray, rate_hz: int = RATE_HZ, container: str = "WAV", subtype: str | None = None
) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, format=container, subtype=subtype)
    return buffer.getvalue()


def wav(
    body: bytes,
    *,
    rate_hz: int = RATE_HZ,
    num_channels: int = 1,
    bits: int = 16,
    tag: int = 1,
    declared_bytes: int | None = None,
    after: bytes = b"",
) -> bytes:
    """A WAV written by hand, so that its header can lie."""
    declared = len(body) if declared_bytes is None else declared_bytes
    frame_bytes = num_channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, num_channels, rate_hz, rate_hz * frame_bytes, frame_bytes, bits)
    chunks = (
        b"WAVE"
        + struct.pack("<4sI", b"fmt ", 16)
        + fmt
        + struct.pack("<4sI", b"data", declared)
        + body
        + after
    )
    return struct.pack("<4sI", b"RIFF", len(chunks) & 0xFFFFFFFF) + chunks


def pcm16(samples: np.ndarray) -> bytes:
    return np.rint(samples * 32767).astype("<i2").tobytes()


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack("<4sI", name, len(content)) + content + b"\0" * (len(content) % 2)


def list_info(**texts: str) -> bytes:
    entries = b"".join(chunk(key.encode(), text.encode() + b"\0") for key, text in texts.items())
    return chunk(b"LIST", b"INFO" + entries)
