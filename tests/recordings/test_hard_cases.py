"""Every file of the hard cases is read correctly or refused with the right code;
the table is the specification.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from mast_ray.recordings.annotations.model import merge_annotations
from mast_ray.recordings.annotations.paths import list_files
from mast_ray.recordings.annotations.reading import read_annotations, read_listened
from mast_ray.recordings.clock_and_site.sites import recordings_among
from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording
from mast_ray.recordings.decoding.reading import open_recording

# path -> (rate, channels, readable seconds) or the reason of the refusal
SOUND = {
    "aoef_whombat/XC824040-Carollia_castanea-2013.01.17-CL00312_A_15.wav": (384_000, 1, 1.007),
    "audacity_bbox/spinetail.wav": (44_100, 1, 19.542),
    "broken_mp3/XC172911 - Pale-breasted Thrush - Turdus leucomelas leucomelas.mp3": (11_025, 1, 33.489),
    "broken_mp3/XC325862 - Rufous-collared Sparrow - Zonotrichia capensis.mp3": (48_000, 2, 29.4),
    "codecs/aiff_pcm_24.aiff": (16_000, 1, 1.0),
    "codecs/flac_pcm_24.flac": (16_000, 1, 1.0),
    "codecs/mp3_mpeg_layer_iii.mp3": (16_000, 1, 1.0),
    "codecs/ogg_opus.ogg": (16_000, 1, 1.0),
    "codecs/ogg_vorbis.ogg": (16_000, 1, 1.0),
    "codecs/wav_double.wav": (16_000, 1, 1.0),
    "codecs/wav_float.wav": (16_000, 1, 1.0),
    "codecs/wav_ima_adpcm.wav": (16_000, 1, 1.017),
    "codecs/wav_pcm_24.wav": (16_000, 1, 1.0),
    "codecs/wav_pcm_u8.wav": (16_000, 1, 1.0),
    "codecs/wav_ulaw.wav": (16_000, 1, 1.0),
    "high_rate/chirp_384kHz.wav": (44_100, 1, 30.0),
    "opensoundscape/audiomoth_gps.wav": (48_000, 1, 2.0),
    "opensoundscape/birds_10s.wav": (32_000, 1, 10.133),
    "opensoundscape/empty_2c.wav": Reason.HEADER_ONLY,
    "opensoundscape/great_plains_toad.wav": (44_100, 1, 44.571),
    "opensoundscape/silence_10s.mp3": (44_100, 1, 10.0),
    "opensoundscape/stereo.wav": Reason.TOO_SHORT,
    "opensoundscape/veryshort.wav": (44_100, 1, 0.142),
    "raven_multifile/Phaethornis-eurynome-15607.wav": (44_100, 1, 32.836),
    "raven_multifile/Phaethornis-guy-227574.mp3": (32_000, 2, 27.687),
    "raven_multifile/Phaethornis-guy-238804.mp3": (44_100, 1, 22.256),
    "raven_multifile/Phaethornis-guy-687234.mp3": (44_100, 1, 45.341),
    "raven_qut/dalby_bush_01_2980_702775_20201222_180530_30_0.wav": (24_000, 1, 30.0),
    "raven_qut/dalby_bush_01_2980_772103_20210219_175100_30_0.wav": (24_000, 1, 30.0),
    "same_clip_5_codecs/21100_36_48.flac": (16_000, 1, 10.0),
    "same_clip_5_codecs/21100_36_48.mp3": (16_000, 1, 10.0),
    "same_clip_5_codecs/21100_36_48.ogg": (16_000, 1, 10.0),
    "same_clip_5_codecs/21100_36_48.opus": (16_000, 1, 10.0),
    "same_clip_5_codecs/21100_36_48.wav": (16_000, 1, 10.0),
    "stereo/10_11003.wav": (44_100, 2, 5.0),
    "wac/recording_20170716_230503.wac": Reason.UNSUPPORTED_FORMAT,
}

# path -> number of events read without a root, and one of them (begin, end, low, high, label)
TABLES = {
    "aoef_whombat/example_annotation_project.json": (433, (0.09236, 0.09787, 23437.5, 27187.5, "Diclidurus albus")),
    "audacity_bbox/cold_forest_daylight_label.txt": (160, (0.594519, 1.053147, 3324.873047, 5152.28418, "1")),
    "audacity_bbox/spinetail.txt": (18, (0.101385, 0.36752, 6441.064453, 12296.577148, "SP")),
    "opensoundscape/EmptyExample.Table.1.selections.txt": (0, None),
    "opensoundscape/MSD-0003_20180427_2minstart00.Table.1.selections.txt": (10, (1.897648, 4.110571, 1326.3, 3266.5, "WOTH")),
    "opensoundscape/raven_with_Annotation_col.txt": (1, (1.897648, 4.110571, 1326.3, 3266.5, "CSWA")),
    "raven_multifile/Label Track3.txt": (2, (44.166246, 44.31342, 4934.57666, 11155.16215, "1")),
    "raven_multifile/P. eurynome selection table.csv": (46, (0.773606, 0.951588, 4079.25, 8489.25, "a")),
    "raven_multifile/Phaethornis-guy-2022.Table.1.selections.txt": (25, (0.773732, 0.993971, 2096.2, 7725.2, "")),
    "raven_multifile/annotations_p_guy.csv": (25, (0.7737, 0.993938, 2096.2, 7725.2, "")),
    "raven_odd/DSG_6_RG_3_0004140-0004500.Table.1.selections.txt": (27, (3.578891, 5.11669, 75.709, 288.338, "9")),
    "raven_odd/FK03_01_671354921_20190219T214331Z.Table.1.selections.txt": (470, (1.327351, 2.534034, 19.286, 340.714, "9")),
    # second of many files: the time in the file is File Offset 1.3923, not Begin Time 175.07
    "raven_odd/Jim2RH2-2011-000-7251-7500.Table.1.selections.txt": (40, (1.3923, 9.477851, 44.471, 338.665, "10")),
    "raven_qut/dalby_bush_01_2980_702775_20201222_180530_30_0.Table.1.selections.txt": (5, (4.389401, 5.109643, 372.574, 822.768, "")),
    # a selection of zero bandwidth is kept as it was drawn
    "raven_qut/dalby_bush_01_2980_772103_20210219_175100_30_0.Table.1.selections.txt": (5, (17.123615, 17.162052, 4066.116, 4066.116, "")),
    # every selection stands twice, as waveform and as spectrogram
    "raven_qut/sel.02.ch01.221101.153948.19..Table.1.selections.txt": (12, (4.644285, 5.975103, 879.3, 2506.0, "")),
}  # fmt: skip


@pytest.fixture(scope="module")
def hard_cases(shared_data):
    return shared_data / "hard_cases"


def test_the_tables_name_every_hard_case(hard_cases):
    files = list_files(hard_cases)
    sound = set(recordings_among(files))
    assert sound == set(SOUND)
    others = {
        "aoef_whombat/example_dataset.json",
        "raven_multifile/metadata_p_guy_XC.csv",
    }  # no annotations in them
    assert set(files) - sound == set(TABLES) | others


@pytest.mark.parametrize("path", SOUND)
def test_a_hard_case_is_read_or_refused_as_the_table_says(hard_cases, path):
    want = SOUND[path]
    try:
        with open_recording(hard_cases / path) as reading:
            samples = np.concatenate(list(reading.blocks(5.0)))
    except UnreadableRecording as error:
        assert error.reason == want
        return
    assert not isinstance(want, Reason), f"expected {want}"
    rate_hz, num_channels, duration_s = want
    assert (reading.info.sample_rate_hz, reading.info.num_channels) == (rate_hz, num_channels)
    assert reading.duration_s == pytest.approx(duration_s, abs=0.001)
    assert reading.salvage is None
    assert np.isfinite(samples).all()


_READ_ALL = """
import sys
from mast_ray.recordings.annotations.paths import list_files
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.recordings.decoding.reading import open_recording
from mast_ray.recordings.decoding.faults import UnreadableRecording
from mast_ray.recordings.clock_and_site.sites import recordings_among
for path in recordings_among(list_files(sys.argv[1])):
    try:
        with open_recording(f"{sys.argv[1]}/{path}") as reading:
            for block in reading.blocks():
                pass
    except UnreadableRecording:
        pass
read_annotations(sys.argv[1], root=sys.argv[1])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc")
def test_all_hard_cases_together_take_less_than_a_gigabyte(hard_cases):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _READ_ALL, hard_cases]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(run.stdout) < 1_000_000  # kB


# median difference of a time-frequency cell in dB: FLAC is exact, this MP3 has 24 kbit/s
CODEC_TOLERANCE_DB = {"flac": 0.001, "ogg": 1.0, "opus": 1.0, "mp3": 1.5}


@pytest.mark.parametrize("codec", CODEC_TOLERANCE_DB)
def test_the_same_clip_in_five_codecs_agrees(hard_cases, codec):
    def samples_of(suffix):
        with open_recording(hard_cases / "same_clip_5_codecs" / f"21100_36_48.{suffix}") as reading:
            return np.concatenate(list(reading.blocks()))

    def power_db(samples):
        frames = samples.reshape(-1, 400) * np.hanning(400)
        spectrum = np.abs(np.fft.rfft(frames)) ** 2
        bands = np.add.reduceat(
            spectrum[:, 4:100], np.arange(0, 96, 6), axis=1
        )  # 160 Hz to 4 kHz, 240 Hz each
        return 10 * np.log10(bands + 1e-6)

    got, want = samples_of(codec), samples_of("wav")
    assert np.median(np.abs(power_db(got) - power_db(want))) < CODEC_TOLERANCE_DB[codec]
    spectrum = np.fft.rfft(got, 2 * len(got)) * np.fft.rfft(want, 2 * len(want)).conj()
    assert np.argmax(np.fft.irfft(spectrum)) == 0  # no encoder delay is left in


def test_wac_is_refused_with_a_sentence_that_says_what_to_do(hard_cases):
    with pytest.raises(UnreadableRecording) as caught:
        open_recording(hard_cases / "wac/recording_20170716_230503.wac")
    assert "convert it to WAV with Kaleidoscope" in str(caught.value)


@pytest.mark.parametrize("path", TABLES)
def test_a_hard_table_is_read_as_written(hard_cases, path):
    count, first = TABLES[path]
    found = read_annotations(hard_cases / path)
    assert len(found.annotations) == count
    assert found.problems == ()
    assert len(found.annotated_paths) >= 1
    if first is not None:
        event = found.annotations[0]
        got = (event.begin_s, event.end_s, event.low_hz, event.high_hz)
        assert got == pytest.approx(first[:4], abs=1e-5)
        assert event.label == first[4]


def test_a_folder_of_tables_finds_its_recordings(hard_cases):
    found = read_annotations(hard_cases, root=hard_cases)
    assert "raven_multifile/Phaethornis-guy-227574.mp3" in found.annotated_paths  # the table says .wav
    assert "audacity_bbox/spinetail.wav" in found.annotated_paths
    assert "Phaethornis-guy-257788.wav" in found.unresolved
    assert all((hard_cases / path).is_file() for path in found.annotated_paths)


def test_the_annotation_tables_of_the_soundscapes_are_read(shared_data):
    for name, count, files in (("nips4bplus", 5775, 569), ("ovenbird_5sites", 450, 450)):
        folder = shared_data / "soundscapes" / name
        found = read_annotations(folder / "annotations.csv", root=folder)
        assert (len(found.annotations), len(found.annotated_paths)) == (count, files)
        assert found.unresolved == found.problems == ()
    assert (
        sum(
            a.is_time_only
            for a in read_annotations(shared_data / "soundscapes/nips4bplus/annotations.csv").annotations
        )
        == 489
    )


def test_a_list_of_annotated_recordings_adds_those_without_events(shared_data):
    folder = shared_data / "soundscapes/nips4bplus"
    listed = read_listened(folder / "labelled.csv", root=folder)
    found = merge_annotations([read_annotations(folder / "annotations.csv", root=folder), listed])
    assert (len(found.annotations), len(found.annotated_paths)) == (5775, 687)


def test_birdeep_rows_without_birds_are_annotated_recordings_without_events(shared_data):
    found = read_annotations(shared_data / "annotation_tables/birdeep/audio_annotations.sample.csv")
    assert len(found.annotations) == 19
    empty = found.annotated_paths - {a.path for a in found.annotations}
    assert "AM4/2023_05_30/AM4_20230530_103000.WAV" in empty
    assert not any(a.label == "No audio" for a in found.annotations)
