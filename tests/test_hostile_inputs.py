"""Whatever a file of the user's holds, reading it ends with a result or with a MastError: never with a traceback, after
more than ten seconds, or with more than a gigabyte of memory.
"""

import contextlib
import json
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mast_ray.config.errors import MastError
from mast_ray.config.loading import config_from_yaml
from mast_ray.recordings.annotations.reading import parse_annotations
from mast_ray.recordings.clock_and_site.site_tables import parse_site_table
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import commit_from_json, read_commits
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.files.model_files import read_card

MANY = settings(
    max_examples=60,
    deadline=10_000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MOST_BYTES = 1 << 30


@pytest.fixture(autouse=True)
def in_little_memory():
    """The most that this process ever held must not rise by a gigabyte in any one test."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES


CELL = st.one_of(
    st.sampled_from(
        [
            "",
            "a.wav",
            "../../etc/passwd",
            "C:\\x.wav",
            "-1",
            "1e999",
            "nan",
            "1,5",
            "0x10",
            "2024-13-45",
            "+9900",
            '"',
            "=1+1",
            "\x1b[2J",
            "ป่า",
        ]
    ),
    st.text(max_size=12),
    st.floats().map(str),
)
HEADERS = st.sampled_from(
    [
        "file", "Begin File", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)", "High Freq (Hz)", "site", "start_time", "timezone",
        "latitude", "longitude", "onset", "offset", "label", "Start (s)", "recording_id", "t_min", "t_max", "x", "",
    ]
)  # fmt: skip
TABLES = st.builds(
    lambda names, rows, mark: "\n".join(mark.join(row) for row in [names, *rows]),
    st.lists(HEADERS, min_size=1, max_size=7),
    st.lists(st.lists(CELL, max_size=7), max_size=5),
    st.sampled_from([",", ";", "\t"]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "stage", "key", "inputs", "counts", "config", "schema_version", "kind", "model", "normalisation", "weights_sha256",
        "score_threshold", "calibration", "unit_id", "token", "files", "outcomes", "versions", "info", "data", "recordings",
        "annotations", "images", "categories",
    ]
)  # fmt: skip
DOCUMENTS = st.one_of(JSON, st.dictionaries(FIELDS, JSON, max_size=9))


@MANY
@given(
    st.one_of(
        TABLES.map(str.encode), st.binary(max_size=200), DOCUMENTS.map(lambda d: json.dumps(d).encode())
    )
)
@pytest.mark.parametrize("name", ["x.txt", "x.csv", "x.json", "x.xml"])
def test_annotations(name, content):
    with contextlib.suppress(MastError):
        parse_annotations(content, name)


@MANY
@given(st.one_of(TABLES, st.text(max_size=200)))
def test_tables_of_recordings_and_sites(text):
    with contextlib.suppress(MastError):
        parse_site_table(text).row_of("a.wav", "x")


@MANY
@given(st.one_of(DOCUMENTS.map(lambda d: json.dumps(d).encode()), st.binary(max_size=100)))
def test_cards_manifests_and_commits(tmp_path, content):
    stage = open_storage(tmp_path)
    for name in ("card.json", "manifest.json", "commit/x.json"):
        stage.write_atomic(name, content)
    read_manifest(stage)
    for read in (read_card, open_prepared, read_commits):
        with contextlib.suppress(MastError):
            read(stage)


def bomb(depth: int, width: int) -> str:
    """YAML in which every line holds the one before `width` times: width ** depth values in a few hundred bytes."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth)]
    return "\n".join(lines)


@MANY
@given(
    st.one_of(
        st.text(max_size=200),
        DOCUMENTS.map(json.dumps),
        st.builds(bomb, st.integers(1, 30), st.integers(1, 12)),
        st.integers(0, 3000).map(lambda depth: "[" * depth),
        st.integers(0, 3000).map(lambda depth: "a: " * depth),
        st.dictionaries(st.sampled_from(["seed", "audio", "audio.channel", "split", "recipe"]), JSON).map(
            json.dumps
        ),
    )
)
def test_yaml(text):
    with contextlib.suppress(MastError):
        config_from_yaml(text, "x.yaml")


def test_a_commit_of_wrong_fields_is_not_taken_for_one():
    with pytest.raises((TypeError, KeyError)):
        commit_from_json(b'{"files": [], "outcomes": []}')
