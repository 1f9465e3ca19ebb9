"""Windows of sound are cut at the right sample, from any rate, and nothing outside the audio root is read."""

import base64
import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from mast_ray.config.errors import DataError
from mast_ray.reporting.clips import grey_pixels, picture_uri, read_window, safe_key, sound_uri
from mast_ray.spectrogram.grid import hertz_to_bin
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.storage.storage import open_storage


def tone(rate_hz: int, hertz: float, seconds: float) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(rate_hz * seconds)) / rate_hz)).astype(np.float32)


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
@pytest.mark.parametrize("name", ["x.wav", "x.flac"])
def test_a_click_stands_where_it_was_put(tmp_path, rate_hz, name):
    samples = np.zeros(rate_hz * 10, np.float32)
    samples[rate_hz * 7 : rate_hz * 7 + 3] = 0.9
    soundfile.write(tmp_path / name, samples, rate_hz)
    window = read_window(open_storage(tmp_path), name, 6.5, 8.0)
    assert len(window) == 24_000
    assert abs(int(np.abs(window).argmax()) - 8_000) <= 2


def test_a_window_past_the_end_is_shorter(tmp_path):
    soundfile.write(tmp_path / "x.wav", tone(16_000, 1000, 2.0), 16_000)
    assert len(read_window(open_storage(tmp_path), "x.wav", 1.5, 4.0)) == 8_000


def test_a_damaged_header_is_read_by_the_tolerant_decoder(tmp_path):
    soundfile.write(tmp_path / "x.wav", tone(16_000, 1000, 4.0), 16_000, subtype="PCM_16")
    data = bytearray((tmp_path / "x.wav").read_bytes())
    data[40:44] = b"\xff\xff\xff\xff"  # a recorder that lost power
    (tmp_path / "x.wav").write_bytes(data)
    assert len(read_window(open_storage(tmp_path), "x.wav", 1.0, 2.0)) == 16_000


@pytest.mark.parametrize("written_s", [0.0, 1.0])  # what the header says of 4 seconds
@pytest.mark.parametrize("begin_s", [0.0, 0.5, 1.5])
def test_a_file_that_goes_on_behind_its_header_is_heard_beyond_it(tmp_path, written_s, begin_s):
    soundfile.write(tmp_path / "x.wav", tone(16_000, 1000, 4.0), 16_000, subtype="PCM_16")
    whole = read_window(open_storage(tmp_path), "x.wav", begin_s, begin_s + 2.0)
    data = bytearray((tmp_path / "x.wav").read_bytes())
    data[40:44] = int(written_s * 32_000).to_bytes(
        4, "little"
    )  # last brought up to date before the power went
    (tmp_path / "x.wav").write_bytes(data)
    heard = read_window(open_storage(tmp_path), "x.wav", begin_s, begin_s + 2.0)
    assert len(heard) == 32_000 and np.abs(heard - whole).max() < 1e-3


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../secret.wav",
        "a/../../secret.wav",
        "s3://other/x.wav",
        "file:///etc/passwd",
        "C:\\x.wav",
        "..\\x.wav",
        "link/x.wav",
    ],
)
def test_no_path_of_a_table_leads_out_of_the_audio_root(tmp_path, path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="outside the audio folder"):
        safe_key(path, open_storage(tmp_path / "root"))


def test_sound_comes_back_as_loud_and_long(tmp_path):
    uri = sound_uri(0.01 * tone(16_000, 2000, 3.0))
    data = base64.b64decode(uri.removeprefix("data:audio/ogg;base64,"))
    samples, rate_hz = soundfile.read(io.BytesIO(data))
    assert rate_hz == 16_000 and len(samples) == pytest.approx(48_000, abs=1000)
    assert 0.4 < np.abs(samples).max() < 1.0  # quiet recordings are made audible
    assert len(data) < 20_000


def test_a_tone_is_a_bright_row_at_its_mel_bin():
    uri = picture_uri(grey_pixels(tone(16_000, 3000, 2.0), LogMel()))
    picture = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/webp;base64,"))))
    pixels = np.asarray(picture.convert("L"))
    assert pixels.shape == (128, 198)
    assert abs((127 - pixels.mean(axis=1).argmax()) - float(hertz_to_bin(3000.0))) <= 1.0
