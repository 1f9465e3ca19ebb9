"""Planning, ledger, commits, tally and tables of many recordings that do not exist;
benchmarks/control_plane.py shows a million.
"""

import pytest
from control_plane import DETECTIONS_PER_RECORDING, FakeArchive, peak_mb, simulate

from mast_ray.reporting.detection_tables import read_recordings
from mast_ray.stages.detect.plan import Workers, plan_detect_units
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import open_storage
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
