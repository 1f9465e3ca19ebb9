"""A few seconds of a recording as something to embed: sound as Ogg Vorbis, log-mel as a
small grey WebP, both data: URIs.

Windows are seconds of the recording. Sound is 16 kHz mono; pictures are one pixel per frame (10 ms) and
mel bin, with high frequencies on top.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from PIL import Image

from mast_ray.config.errors import DataError
from mast_ray.recordings.decoding.reading import ANY_RATE, Channel, probe, read_blocks
from mast_ray.spectrogram.grid import NUM_BINS, SAMPLE_RATE_HZ
from mast_ray.spectrogram.logmel import LogMel, one_thread
from mast_ray.storage.storage import Storage

MARGIN_S = 0.05  # read around a window, so that resampling has settled inside it
PICTURE_QUALITIES = (40, 20, 5)  # of 100, best first
PEAK = 0.7  # quiet field recordings are made audible; the table keeps the true level

Samples = NDArray[np.float32]


class OutsideAudioError(DataError):
    """A recording that does not lie below the audio root: it is not read, by whatever name it is called."""


def safe_key(path: str, audio: Storage) -> str:
    """The path if it stays below the audio root, else an error: tables are data, not commands."""
    parts = PurePosixPath(path.replace("\\", "/"))
    outside = (
        parts.is_absolute() or ".." in parts.parts or "://" in path or (len(path) > 1 and path[1] == ":")
    )
    if outside:
        raise OutsideAudioError(
            f"{path!r} lies outside the audio folder {audio.url}: give the root that holds it"
        )
    local = audio.local_path(path)
    if local is not None and Path(audio.url).resolve() not in local.resolve().parents:
        raise OutsideAudioError(
            f"{path!r} lies outside the audio folder {audio.url}, where a link leads to:\n"
            "nothing is played or drawn from there; put the recordings into the folder, or mount theirs in it"
        )
    return path


def channel_heard(config: Mapping[str, Any]) -> Channel:
    """The channel that a stage has listened to, as the config in its manifest says; people are to hear the same."""
    audio = config.get("audio")
    return 0 if isinstance(audio, Mapping) and audio.get("channel") == "first" else "mean"


def read_window(
    audio: Storage, path: str, begin_s: float, end_s: float, channel: Channel = "mean"
) -> Samples:
    """16 kHz mono samples of [begin_s, end_s) of a recording, shorter at its end.

    Seeks where the file can be sought; a damaged file is read from its beginning by the tolerant decoder.
    """
    key = safe_key(path, audio)
    try:
        with audio.open_read(key) as file, soundfile.SoundFile(file) as sound:
            first = max(int((begin_s - MARGIN_S) * sound.samplerate), 0)
            count = int((end_s + MARGIN_S) * sound.samplerate) - first
            sound.seek(first)
            frames = sound.read(count, dtype="float32", always_2d=True)
            samples = (
                frames.mean(axis=1, dtype=np.float32)
                if channel == "mean"
                else np.ascontiguousarray(frames[:, channel])
            )
            rate_hz, num_frames = sound.samplerate, sound.frames
    except soundfile.LibsndfileError:
        return _by_blocks(audio, key, begin_s, end_s, channel)
    if len(samples) < count and _holds_more(audio, key, num_frames):
        return _by_blocks(audio, key, begin_s, end_s, channel)
    if rate_hz != SAMPLE_RATE_HZ:
        samples = soxr.resample(samples, rate_hz, SAMPLE_RATE_HZ)
    skip = round((begin_s - first / rate_hz) * SAMPLE_RATE_HZ)
    return np.nan_to_num(samples[skip : skip + round((end_s - begin_s) * SAMPLE_RATE_HZ)])


def _holds_more(audio: Storage, key: str, num_frames: int) -> bool:
    """Whether a file goes on where its header says that it ends: the tolerant decoder, and so the detector, heard it all."""
    with audio.open_read(key) as file:
        info = probe(file, limits=ANY_RATE)
    return info.fault is not None and (info.readable_frames or 0) > num_frames


def _by_blocks(audio: Storage, key: str, begin_s: float, end_s: float, channel: Channel) -> Samples:
    first, last = round(begin_s * SAMPLE_RATE_HZ), round(end_s * SAMPLE_RATE_HZ)
    kept, position = [], 0
    with audio.open_read(key) as file:
        for block in read_blocks(file, block_s=30.0, channel=channel, limits=ANY_RATE):
            kept.append(block[max(first - position, 0) : max(last - position, 0)])
            position += len(block)
            if position >= last:
                break
    return np.concatenate(kept) if kept else np.zeros(0, np.float32)


def clip_uris(samples: Samples, logmel: LogMel, max_bytes: int) -> tuple[str, str]:
    """Picture and sound; the picture is made coarser when both take more than
    `max_bytes` (rain, wind, noise).
    """
    sound, pixels = sound_uri(samples), grey_pixels(samples, logmel)
    for quality in PICTURE_QUALITIES:
        picture = picture_uri(pixels, quality)
        if len(picture) + len(sound) <= max_bytes:
            break
    return picture, sound


def audible(samples: Samples) -> Samples:
    """The same sound, as loud as can be heard well."""
    loudest = float(np.abs(samples).max(initial=0.0))
    return samples * (PEAK / loudest) if loudest > 0 else samples


def wav_bytes(samples: Samples) -> bytes:
    """16 kHz sound as a WAV file of 16 bits."""
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    return file.getvalue()


def sound_uri(samples: Samples) -> str:
    """Ogg Vorbis, about 32 kbit/s. Opus is 10 % smaller, but ten times slower to
    encode (40 s for 200 examples).
    """
    file = io.BytesIO()
    soundfile.write(
        file, audible(samples), SAMPLE_RATE_HZ, format="OGG", subtype="VORBIS", compression_level=0.9
    )
    return "data:audio/ogg;base64," + base64.b64encode(file.getvalue()).decode()


def grey_pixels(samples: Samples, logmel: LogMel) -> NDArray[np.uint8]:
    """(F, n) log-mel in grey, high frequencies first: darkest in the background,
    brightest just under the peak.
    """
    with one_thread():
        frames = logmel.frames(samples)  # (n, F)
    if len(frames) == 0:
        frames = np.zeros((1, NUM_BINS), np.float32)
    tilt = np.median(frames, axis=0)
    frames = frames - 0.5 * (
        tilt - tilt.mean()
    )  # half the background's slope: calls stand out, choruses stay visible
    low, high = np.percentile(frames, [20.0, 99.8])
    grey = np.clip((frames - low) / max(high - low, 1e-3), 0.0, 1.0)
    return np.rint(grey.T[::-1] * 255).astype(np.uint8)


def picture_uri(pixels: NDArray[np.uint8], quality: int = 40) -> str:
    """Grey pixels as WebP."""
    return "data:image/webp;base64," + base64.b64encode(picture_bytes(pixels, quality)).decode()


def picture_bytes(pixels: NDArray[np.uint8], quality: int, effort: int = 4) -> bytes:
    """Grey pixels as a WebP file; `effort` 0 is quick, 6 is small."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="WEBP", quality=quality, method=effort)
    return file.getvalue()
