"""Held-out sites and dates that are not there are told before anything is decoded."""

import unicodedata

import pytest
import soundfile as sf
from noise_files import write_noise

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE


@pytest.fixture
def archive(tmp_path):
    for site in ("S1", "S2"):
        for day in (1, 2):
            write_noise(tmp_path / f"in/{site}/2024050{day}_060000.wav", 1.1, day)
    return tmp_path / "in"


def planned(archive, dry_run=True, table="", labels="", **knobs):
    inputs = PrepareInputs(str(archive), str(archive.parent / "out"), str(labels), table=str(table))
    return prepare(inputs, apply_overrides(field(), knobs), runner=HERE, dry_run=dry_run)


@pytest.mark.parametrize(
    "knobs, said",
    [
        ({"split.ood_sites": ["S9"]}, "split.ood_sites names 'S9', which is not in the archive: there are S1, S2"),
        ({"split.ood_dev_sites": ["S9"]}, "split.ood_dev_sites names 'S9'"),
        ({"split.ood_dates": ["2024-05-03"]}, "split.ood_dates names '2024-05-03'.*there are 2024-05-01, 2024-05-02"),
        ({"split.ood_sites": ["S1"], "split.ood_test_dates": ["2024-05-03"]}, "split.ood_test_dates names"),
        ({"split.ood_test_dates": ["2024-05-01"]}, "dates of split.ood_sites, which names none"),
        ({"split.ood_pool_sites": ["S1"]}, "ood_pool_sites does nothing by itself"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_before_a_folder_is_made(archive, knobs, said):
    with pytest.raises(ConfigError, match=said):
        planned(archive, dry_run=False, **knobs)
    assert not (archive.parent / "out").exists()


def test_sites_and_dates_of_the_table_count(archive, tmp_path):
    (tmp_path / "t.csv").write_text(
        "file,site,start_time\nS1/20240501_060000.wav,River,2024-07-09 06:00:00\n", encoding="utf-8"
    )
    found = {"split.ood_sites": ["River"], "split.ood_dates": ["2024-07-09"]}
    assert planned(archive, table=tmp_path / "t.csv", **found) == 0
    with pytest.raises(ConfigError, match="2024-07-10"):
        planned(archive, table=tmp_path / "t.csv", **{"split.ood_dates": ["2024-07-10"]})


def test_a_date_that_only_a_header_says_is_found(archive):
    with sf.SoundFile(archive / "S1/AM.wav", "w", 16_000, 1) as file:
        file.comment = "Recorded at 23:00:00 06/05/2024 (UTC+2) by AudioMoth"
        file.write([0.1, -0.1] * 9000)
    assert planned(archive, **{"split.ood_dates": ["2024-05-06"]}) == 0
    with pytest.raises(ConfigError, match=r"2024-05-07.*there are 2024-05-01, 2024-05-02, 2024-05-06"):
        planned(archive, **{"split.ood_dates": ["2024-05-07"]})


def test_a_site_is_the_same_however_its_accents_are_written(tmp_path):
    write_noise(tmp_path / "in" / "Süd" / "20240501_060000.wav", 0.1, 1)
    assert planned(tmp_path / "in", **{"split.ood_sites": [unicodedata.normalize("NFD", "Süd")]}) == 0
