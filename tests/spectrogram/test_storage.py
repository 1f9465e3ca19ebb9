"""What quantised storage costs."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from mast_ray.spectrogram.logmel import LOG_FLOOR, LogMel
from mast_ray.spectrogram.storage import FIXED_RANGE, dequantise, quantise


def test_one_byte_costs_at_most_half_a_step_of_0_11() -> None:
    values = np.random.default_rng(0).uniform(LOG_FLOOR, 12, (512, 128)).astype(np.float32)
    stored = quantise(values, "uint8")
    assert stored.values.dtype == np.uint8 and stored.scale == pytest.approx(0.10958, abs=1e-4)
    error = dequantise(*stored) - values
    assert np.abs(error).max() <= stored.scale / 2 + 1e-5
    assert np.sqrt(np.square(error).mean()) == pytest.approx(stored.scale / 12**0.5, rel=0.01)  # 0.032


def test_two_bytes_cost_a_relative_2_to_the_minus_11() -> None:
    values = np.random.default_rng(0).uniform(LOG_FLOOR, 12, (512, 128)).astype(np.float32)
    stored = quantise(values, "float16")
    assert stored.values.dtype == np.float16 and (stored.scale, stored.offset) == (1.0, 0.0)
    assert (np.abs(dequantise(*stored) - values) <= np.abs(values) * 2.0**-11 + 1e-6).all()


def test_one_byte_is_small_against_the_spread_of_real_sound(shared_data: Path) -> None:
    samples, _ = soundfile.read(
        shared_data / "hard_cases/same_clip_5_codecs/21100_36_48.wav", dtype="float32"
    )
    frames = LogMel().frames(samples)
    fixed = np.sqrt(np.square(dequantise(*quantise(frames, "uint8")) - frames).mean())
    fitted = np.sqrt(np.square(dequantise(*quantise(frames, "uint8", None)) - frames).mean())
    assert fitted < fixed < 0.035 < 0.03 * frames.std()


def test_silence_is_stored_exactly_and_values_outside_the_range_are_clipped() -> None:
    values = np.array([LOG_FLOOR, FIXED_RANGE[1], -40.0, 40.0], np.float32)
    stored = quantise(values, "uint8")
    assert stored.values.tolist() == [0, 255, 0, 255]
    assert dequantise(*stored)[0] == np.float32(LOG_FLOOR)


def test_a_constant_array_survives_its_own_range() -> None:
    values = np.full((4, 4), -3.5, np.float32)
    assert (dequantise(*quantise(values, "uint8", None)) == values).all()
