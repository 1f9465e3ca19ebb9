"""A model scored by two raylets has the figures it has in one process, to the last digit."""

import os

import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.spectrogram.logmel import one_thread
from mast_ray.stages.detect import chunks
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import read_commits

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_evaluate_on_two_raylets_is_equal_to_one_process(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    prepared = make_prepared(tmp_path / "small", num_recordings=8, seconds=22)
    config = small_config(
        **{"evaluate.max_detections": 20, "evaluate.bootstrap": 100, "cluster.num_workers": 2}
    )
    detector = write_seed_detector(config, prepared, tmp_path / "detector")
    monkeypatch.setattr(
        chunks, "chunks_of_a_unit", lambda num_chunks: 2
    )  # as many units as a large archive has
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    wanted = Wanted(threshold=0.05, by=("site",))  # a fresh head gives about 0.1 to everything
    with one_thread():  # as in the workers: sums of several threads differ in their last bits
        alone = evaluate_model(config, detector, str(prepared), str(tmp_path / "one"), wanted, runner=HERE)
    # each raylet has room for one detector: two of them are on both
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(chunks.__file__).rsplit("/mast_ray/", 1)[0]]))
        both = evaluate_model(config, detector, str(prepared), str(tmp_path / "two"), wanted, runner=ON_RAY)
    finally:
        cluster.shutdown()
    assert repr(both.sheet.rows) == repr(alone.sheet.rows)  # a figure that is not a number is equal to itself
    assert both.threshold == alone.threshold and both.sheet.rows[0].num_detections > 0
    assert any(row.by == "site" for row in both.sheet.rows)
    commits = [read_commits(open_storage(tmp_path / name / "chunks")) for name in ("one", "two")]
    assert [commit.unit_id for commit in commits[0]] == [commit.unit_id for commit in commits[1]]
    assert len(commits[0]) >= 3
    assert [commit.files for commit in commits[0]] == [commit.files for commit in commits[1]]
