"""Planning, ledger, commits, tally and tables of many recordings that do not exist;
benchmarks/control_plane.py shows a million.
"""

import pytest
from control_plane import DETECTIONS_PER_RECORDING, FakeArchive, peak_mb, simulate
from huge_archive import CHUNKS_PER_RECORDING, simulate_pool, slopes

from mast_ray.reporting.detection_tables import read_recordings
from mast_ray.stages.detect import plan
from mast_ray.stages.detect.plan import Workers, order_by_site_and_date, plan_detect_units
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Item
from mast_ray.tables.preparing.inventory import list_archive
from mast_ray.verbs.main import config_of


@pytest.mark.slow
def test_twenty_thousand_recordings_are_counted_once_each_in_bounded_memory(tmp_path):
    before_mb = peak_mb()
    result = simulate(20_000, "here", tmp_path)
    counts = read_manifest(open_storage(tmp_path)).counts
    assert (
        counts["offered"] == 20_000
        and counts["detections"] == DETECTIONS_PER_RECORDING * counts["recordings"]
    )
    assert read_recordings(str(tmp_path)).num_rows == counts["recordings"]
    assert peak_mb() - before_mb < 100  # 5 kB a recording; a million in 1.5 GB needs about 1
    assert result["planning_a_resume_s"] < 15


@pytest.mark.slow
def test_a_large_archive_gives_few_units_and_hardly_more_files_than_units_and_site_days():
    items = list_archive(FakeArchive(60_000)).items
    units = plan_detect_units(items, config_of(None, None, []).detect, Workers("cpu", 2, 1.0))
    assert len(units) == 1875  # of 32 recordings, just under four hours
    site_days = {(item.path[:4], item.path.split("_")[1]) for item in items}
    files = {(unit.unit_id, item.path[:4], item.path.split("_")[1]) for unit in units for item in unit.items}
    assert len(files) <= len(units) + len(site_days)
    on_gpus = plan_detect_units(items, config_of(None, None, []).detect, Workers("cuda", 8, 12.0, 1.0))
    assert len(on_gpus) < len(units) / 6


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_recordings_of_a_site_and_day_lie_side_by_side_however_many_names_are_read_at_once(
    at_once, monkeypatch
):
    monkeypatch.setattr(plan, "NAMES_AT_ONCE", at_once)
    paths = ["b/x_20240502_010000.wav", "a/z_20240502_030000.wav", "a/y_20240503_000000.wav",
             "a/2024/x_20240502_020000.wav", "a/no_time.wav", "b/x_20240501_230000.wav"]  # fmt: skip
    items = [Item(path, path, 1, "") for path in paths]
    ordered = [item.path for item in order_by_site_and_date(items, config_of(None, None, []).audio, None)]
    assert ordered == [paths[4], paths[3], paths[1], paths[2], paths[5], paths[0]]


@pytest.mark.slow
def test_a_pool_of_a_hundred_thousand_chunks_is_planned_counted_and_labelled(tmp_path):
    found = simulate_pool(200, "here", tmp_path, cores=1)
    assert found["chunks"] == 200 * CHUNKS_PER_RECORDING and found["units"] == 17  # 12 recordings each


def test_a_straight_line_has_the_slope_one():
    runs = [
        {"recordings": 1e6, "total_s": 10.0, "driver_peak_gb": 1.0, "worker_gb": 0.5}
        | {"driver_cpu_s": 4.0, "workers_cpu_s": 12.0},
        {"recordings": 1e7, "total_s": 100.0, "driver_peak_gb": 5.5, "worker_gb": 0.5}
        | {"driver_cpu_s": 20.0, "workers_cpu_s": 60.0},
    ]
    found = slopes(runs)
    assert found["slope"] == 1.0 and found["seconds_per_million_largest"] == 10.0
    assert found["cpu_seconds_per_million_largest"] == 8.0 and found["cpu_slope"] == 0.5  # 16 of the smaller
    assert found["driver_gb_per_further_million"] == 0.5 and found["worker_gb_per_further_million"] == 0.0
