"""The header of any recording, from a path or an open file: the one door before the decoders."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording, fault_of_system
from mast_ray.recordings.decoding.headers import Header, read_at, sniff_container
from mast_ray.recordings.decoding.stream_headers import aiff_header, flac_header, mp3_header, ogg_header
from mast_ray.recordings.decoding.wav_headers import wav_header

Source = str | os.PathLike[str] | BinaryIO


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """A seekable binary file; one that was handed in stays open. Never waits for a pipe or a device."""
    if not isinstance(source, str | os.PathLike):
        yield source
        return
    if "://" in os.fspath(source):
        raise ValueError(f"{source}: open a remote recording first (tables.storage) and hand in the file")
    try:
        mode = os.stat(source).st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableRecording(Reason.NOT_A_FILE, "a folder or a device, not a file")
        file = open(source, "rb")  # noqa: SIM115
    except OSError as error:
        raise fault_of_system(error) from error
    except ValueError as error:
        raise UnreadableRecording(Reason.UNREADABLE, f"cannot be opened: {error}") from error
    with file:
        yield file


def read_header(file: BinaryIO) -> Header:
    """Check the start (and, for WAV, AIFF and Ogg, the structure) of a seekable binary file."""
    num_bytes = file.seek(0, os.SEEK_END)
    if num_bytes == 0:
        raise UnreadableRecording(Reason.EMPTY_FILE, "the file has no bytes")
    start = read_at(file, 0, 64)
    try:
        match sniff_container(start):
            case "WAV":
                return wav_header(file, start, num_bytes)
            case "AIFF":
                return aiff_header(file, start, num_bytes)
            case "FLAC":
                return flac_header(file, start, num_bytes, 0)
            case "OGG":
                return ogg_header(file, num_bytes)
            case "MP3":
                return mp3_header(file, start, num_bytes)
    except (struct.error, IndexError) as error:
        raise UnreadableRecording(Reason.BAD_HEADER, f"the header ends too early: {error}") from error
