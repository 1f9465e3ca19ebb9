"""Which files are recordings, and which folder names a site."""

import pytest

from mast_ray.recordings.clock_and_site.sites import is_junk, recordings_among, site_of


@pytest.mark.parametrize(
    "path",
    [
        "._x.wav", "card/._20180710_053000.WAV", "System Volume Information/x.wav", ".Trash/x.wav", ".Trash-1000/files/x.wav",
        ".Trashes/501/x.wav", "__MACOSX/x.wav", "$RECYCLE.BIN/x.wav", ".hidden.wav", "a\\._x.wav",
    ],
)  # fmt: skip
def test_what_operating_systems_leave_on_a_card_is_junk(path):
    assert is_junk(path)


def test_a_listing_is_reduced_to_its_recordings_in_order():
    paths = [
        "b/2.WAV",
        "a/1.flac",
        "a/._1.flac",
        "notes.txt",
        "a/3.wac",
        "a/1.flac.part",
        "CONFIG.TXT",
        "c/x.opus",
    ]
    assert recordings_among(paths) == ["a/1.flac", "a/3.wac", "b/2.WAV", "c/x.opus"]


@pytest.mark.parametrize(
    ("path", "prefix", "site_from", "want"),
    [
        ("ridge/x.wav", "AM1", "auto", "ridge"),
        ("x.wav", "AM1", "auto", "AM1"),
        ("2023_05_10/x.wav", "AM1", "auto", "AM1"),
        ("ridge/2023-05/audio/x.wav", "AM1", "folder", "ridge"),
        ("ridge/x.wav", "AM1", "prefix", "AM1"),
        ("ridge/x.wav", "AM1", "none", ""),
        ("x.wav", "", "auto", ""),
        ("project\\ridge\\x.wav", "", "folder", "ridge"),
        ("audio/007/2023-05/x.wav", "", "folder", "007"),
        ("007/x.wav", "", "auto", ""),
        ("ridge/007/x.wav", "", "folder", "ridge"),
    ],
)
def test_a_site_comes_from_where_the_policy_says(path, prefix, site_from, want):
    assert site_of(path, prefix, site_from) == want


@pytest.mark.parametrize("folder", ["positive", "Negative", "noise", "false_positives", "no call"])
def test_a_class_is_no_site_unless_it_is_said(folder):
    assert site_of(f"ridge/{folder}/x.wav", "", "auto") == "ridge"
    assert site_of(f"{folder}/x.wav", "S4A1", "auto") == "S4A1"
    assert site_of(f"ridge/{folder}/x.wav", "", "folder") == folder
