"""Log-mel against torchaudio's Kaldi filterbank, on real audio of several rates, whole and in blocks."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
import torchaudio.compliance.kaldi
from hypothesis import given, settings
from hypothesis import strategies as st

from mast_ray.spectrogram import grid
from mast_ray.spectrogram.logmel import (
    LOG_FLOOR,
    LogMel,
    LogMelStream,
    logmel_on_device,
    mel_filters,
    num_frames_of,
)

REAL = {
    16_000: "hard_cases/same_clip_5_codecs/21100_36_48.wav",
    24_000: "hard_cases/raven_qut/dalby_bush_01_2980_702775_20201222_180530_30_0.wav",
    32_000: "hard_cases/opensoundscape/birds_10s.wav",
    44_100: "hard_cases/raven_multifile/Phaethornis-eurynome-15607.wav",
    48_000: "hard_cases/opensoundscape/audiomoth_gps.wav",
    384_000: "hard_cases/aoef_whombat/XC824040-Carollia_castanea-2013.01.17-CL00312_A_15.wav",
}
LOUD = (44_100, "hard_cases/high_rate/chirp_384kHz.wav")  # its name is wrong: the header says 44.1 kHz


def kaldi(waveform: np.ndarray) -> np.ndarray:
    return torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(waveform)[None],
        htk_compat=True,
        sample_frequency=16_000,
        use_energy=False,
        window_type="hanning",
        num_mel_bins=128,
        dither=0.0,
        frame_shift=10,
        low_freq=20.0,
        high_freq=8_000.0,
    ).numpy()


def read_16_khz(path: Path, rate_hz: int, seconds: float = 21.0) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    assert rate == rate_hz
    return soxr.resample(samples.mean(axis=1), rate, 16_000).astype(np.float32)[: int(16_000 * seconds)]


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(num_samples) * 0.1).astype(np.float32)


@pytest.mark.parametrize(("rate_hz", "name"), [*REAL.items(), LOUD])
def test_real_audio_of_several_rates_gives_what_torchaudio_gives(
    shared_data: Path, rate_hz: int, name: str
) -> None:
    waveform = read_16_khz(shared_data / name, rate_hz)
    expected = kaldi(waveform)
    assert len(expected) == num_frames_of(len(waveform)) > 90
    assert np.abs(LogMel().frames(waveform) - expected).max() < 1e-4
    on_device = logmel_on_device(torch.from_numpy(waveform)[None])[0].numpy()
    assert np.abs(on_device - expected).max() < 1e-3


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 32_000, 48_000])
def test_chunks_centred_on_their_own_mean_agree_with_frames_computed_once_per_recording(
    shared_data: Path, rate_hz: int
) -> None:
    waveform = read_16_khz(shared_data / REAL[rate_hz], rate_hz)
    frames = LogMel().frames(waveform)
    for first in range(0, max(1, len(frames) - 1022), 512):
        chunk = waveform[first * 160 : first * 160 + grid.CHUNK_SAMPLES]
        expected = kaldi(chunk - chunk.mean())
        assert np.abs(frames[first : first + len(expected)] - expected).max() < 1e-3


def test_a_tone_at_a_filters_centre_peaks_in_that_bin() -> None:
    time_s = np.arange(16_000) / 16_000
    # Below 1.3 kHz filters are narrower than the 31 Hz between FFT bins, so a tone may peak in a neighbour.
    for number, centre_hz in list(enumerate(grid.bin_to_hertz(np.arange(128.0))))[50::7]:
        tone = (0.5 * np.sin(2 * np.pi * centre_hz * time_s)).astype(np.float32)
        mean_spectrum = LogMel().frames(tone).mean(axis=0)
        assert mean_spectrum.argmax() == number


def test_filters_have_their_peaks_where_the_grid_says() -> None:
    weights = mel_filters().numpy()
    assert weights.shape == (256, 128) and weights.min() == 0 and weights.max() <= 1
    mel = grid.hertz_to_mel(np.arange(256) * 31.25)
    wide = weights[:, 60:]
    middle = (mel[:, None] * wide).sum(0) / wide.sum(0)
    assert (
        np.abs(middle - grid.hertz_to_mel(grid.bin_to_hertz(np.arange(60.0, 128.0)))).max() < 8
    )  # a filter is 43 mel wide


def test_silence_is_the_logarithm_of_the_float32_epsilon() -> None:
    frames = LogMel().frames(np.zeros(16_000, np.float32))
    assert (
        np.abs(frames - np.log(1.1920929e-07)).max() < 1e-5 and pytest.approx(-15.9424, abs=1e-4) == LOG_FLOOR
    )


def test_a_constant_offset_changes_nothing() -> None:
    quiet = noise(8_000)
    assert np.abs(LogMel().frames(quiet + np.float32(0.25)) - LogMel().frames(quiet)).max() < 1e-3


@pytest.mark.parametrize(
    ("num_samples", "expected"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2), (163_840, 1022)]
)
def test_only_whole_frames_are_counted(num_samples: int, expected: int) -> None:
    assert num_frames_of(num_samples) == expected
    assert LogMel().frames(noise(num_samples)).shape == (expected, 128)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 30_000), max_size=8), st.integers(0, 3))
def test_a_stream_of_any_block_sizes_gives_the_very_same_frames(sizes: list[int], seed: int) -> None:
    waveform = noise(sum(sizes), seed)
    stream = LogMelStream()
    parts = [stream.push(block) for block in np.split(waveform, np.cumsum(sizes)[:-1])] if sizes else []
    parts.append(stream.finish())
    assert np.array_equal(np.concatenate(parts), LogMel().frames(waveform))
    assert len(stream.tail) < 400


def test_a_stream_keeps_no_more_than_a_block_of_frames() -> None:
    stream = LogMelStream()
    for _ in range(10):
        stream.push(noise(50_000))
        assert len(stream.tail) < 256 * 160 + 400


def test_a_nan_spoils_only_the_frames_that_hold_it() -> None:
    waveform = noise(16_000)
    clean = LogMel().frames(waveform)
    waveform[8_000] = np.nan  # frames 48 (ends at 8080) to 50 (begins at 8000)
    logmel = LogMel()
    logmel.frames(waveform)
    spoiled = np.isnan(logmel.frames(waveform)).any(axis=1)
    assert np.flatnonzero(spoiled).tolist() == [48, 49, 50]
    assert np.array_equal(logmel.frames(waveform)[~spoiled], clean[~spoiled])


def test_read_only_and_float64_samples_give_the_same_frames() -> None:
    waveform = noise(4_000)
    expected = LogMel().frames(waveform)
    waveform.flags.writeable = False
    assert np.array_equal(LogMel().frames(waveform), expected)
    assert np.abs(LogMel().frames(waveform.astype(np.float64)) - expected).max() == 0
