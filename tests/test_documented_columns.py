"""The columns that docs/data_formats.md names, in its tables and in its lines of R (which nobody runs here), are those of
the files.
"""

import re

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from documented import PAGES, documented_columns

from mast_ray.inference.detection_rows import ROWS
from mast_ray.stages.detect.work import partition_folder

READ = re.compile(r"^(\w+) <- .*arrow::(?:read_parquet|open_dataset)\(\"([^\"]+)\"\)")


def lines_of_r():
    return [
        line
        for page in PAGES
        for block in re.findall(r"^```r\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def r_tables():
    """File -> (variable, columns that lines of R take of it)."""
    lines = lines_of_r()
    found = {match[2]: match[1] for line in lines if (match := READ.match(line))}
    return {
        file: (name, set(re.findall(rf"\b{name}\$(\w+)", "\n".join(lines)))) for file, name in found.items()
    }


@pytest.fixture
def detections(tmp_path):
    """What `mast detect` writes, with embeddings, of one site and day."""
    schema = ROWS.append(pa.field("embedding", pa.list_(pa.float32(), 4)))
    (tmp_path / partition_folder("A", "2024-05-01")).mkdir(parents=True)
    file = tmp_path / partition_folder("A", "2024-05-01") / "x.parquet"
    pq.write_table(schema.empty_table(), file)
    return ds.dataset(
        tmp_path / "detections", partitioning="hive"
    ).schema  # R's open_dataset is the same reader


def test_every_file_that_is_read_in_r_is_known_here():
    assert set(r_tables()) == {"OUT/detections", "OUT/embeddings.parquet"}
    assert sum(line.startswith("boxes <-") or line.startswith("calls <-") for line in lines_of_r()) == 3


def test_columns_of_detections_are_the_documented_ones_and_r_takes_no_other(detections):
    assert documented_columns("Detections") | {"date"} == set(detections.names)
    assert r_tables()["OUT/detections"][1] <= set(detections.names)


def test_r_takes_columns_of_embeddings_that_are_documented():
    """That they are the file's: tests/stages/score/test_embed.py."""
    assert {"embedding"} <= r_tables()["OUT/embeddings.parquet"][1] <= documented_columns("Embeddings")


def test_r_is_told_of_clocks_without_a_zone_and_meets_no_half_floats(detections):
    """R moves a time without a zone into its own (apache/arrow 40309), and takes the bits of a half float for a number (50378)."""
    name = r_tables()["OUT/detections"][0]
    told = "\n".join(lines_of_r())
    for field in detections:
        assert "half" not in str(field.type)
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            assert f'attr({name}${field.name}, "tzone") <- "UTC"' in told


def test_pandas_and_r_take_rows_from_the_models_threshold_on(tmp_path, monkeypatch):
    """All scores are stored: counted without it, a table had ten times as many calls as `mast summarise` counts in it."""
    page = next(page for page in PAGES if page.name == "data_formats.md").read_text()
    (lines,) = [
        block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "calls =" in block
    ]
    (tmp_path / "OUT" / "detections").mkdir(parents=True)
    table = pa.table({"score": pa.array([0.1, 0.5, 0.523, 0.6])})
    pq.write_table(table, tmp_path / "OUT" / "detections" / "x.parquet")
    (tmp_path / "OUT" / "manifest.json").write_text('{"counts": {"model_threshold": 0.523}}')
    monkeypatch.chdir(tmp_path)
    variables = {}
    exec(lines, variables)
    assert variables["calls"].score.tolist() == [0.523, 0.6]
    assert any(line.startswith("calls <-") and "$counts$model_threshold" in line for line in lines_of_r())
