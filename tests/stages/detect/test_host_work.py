"""A detector without weights is spread over cores, and leaves the GPUs to others."""

from small_archive import small_config

from mast_ray.stages.detect.chunks import host_spread, is_host_work, model_spread
from mast_ray.stages.self_train.pseudo_label import pool_task
from mast_ray.storage.spread import Resources
from mast_ray.training.files.shipped import shipped_model

CLUSTER = Resources(num_cpus=16.0, num_gpus=2.0)


def test_cores_work_where_nothing_runs_on_a_gpu():
    config = small_config(**{"cluster.use_gpu": "auto"})
    spread = host_spread(config, CLUSTER, 100)
    assert (spread.num_actors, spread.num_cpus, spread.num_gpus) == (16, 1.0, 0.0)
    assert host_spread(config, CLUSTER, 3).num_actors == 3, "no more than there are units"
    assert model_spread(config, CLUSTER, 100).num_gpus == 1.0


def test_gpus_of_a_cluster_that_grows_on_demand_are_asked_for_before_any_is_up():
    config = small_config(**{"cluster.use_gpu": "yes"})
    spread = model_spread(config, Resources(num_cpus=1.0, num_gpus=0.0), 100)
    assert (spread.num_actors, spread.num_gpus) == (config.cluster.num_workers, 1.0)
    assert model_spread(config, CLUSTER, 100).num_actors == 2, "those that are up work too"


def test_only_a_detector_without_weights_is_work_for_the_host_alone(tmp_path):
    energy, tiny = (str(shipped_model(name)) for name in ("energy", "tiny"))
    task = pool_task(small_config(), energy, str(tmp_path), str(tmp_path / "out"))
    assert is_host_work(task)
    assert not is_host_work(pool_task(small_config(), tiny, str(tmp_path), str(tmp_path / "out")))
