"""An archive that is dealt again: stopped anywhere, the same command goes on; until then it is what it was or refused."""

import json
import shutil

import pytest
from stopped import Killed, full_disk, stopped_at

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.tables.dealing.resplit import deal_as, resplit
from mast_ray.tables.dealing.splits import rows_of_table
from mast_ray.tables.prepared import open_prepared


def dealt(out):
    """What readers of an archive see of its split."""
    rows = open_prepared(out).splits.to_pylist()
    manifest = json.loads((out / "manifest.json").read_text())
    return (
        rows,
        json.loads((out / "stats.json").read_text()),
        manifest["key"],
        manifest["counts"],
        (out / "dealt_before").exists() and any((out / "dealt_before").iterdir()),
    )


def grown(prepared_dir, out):
    """A copy that was dealt as no single run would deal it."""
    shutil.copytree(prepared_dir, out)
    other = {"train": "test", "test": "train"}
    rows = [
        row._replace(split=other.get(row.split, row.split))
        for row in rows_of_table(open_prepared(out).splits)
    ]
    deal_as(str(out), rows, field())
    return out


@pytest.mark.parametrize("error", [Killed, full_disk])
def test_stopped_at_any_change_the_same_split_goes_on(prepared_dir, tmp_path, monkeypatch, error):
    config = apply_overrides(field(), {"seed": 4})
    first = grown(prepared_dir, tmp_path / "first")
    before = dealt(first)
    resplit(str(first), config)
    after = dealt(first)
    assert after[0] != before[0]
    for number in range(1, 40):
        out = tmp_path / f"out{number}"
        grown(prepared_dir, out)
        with stopped_at(monkeypatch, number, error) as tried:
            try:
                resplit(str(out), config)
                break
            except (Killed, OSError):
                pass
        try:  # a reader between the two runs
            assert dealt(out)[:4] in (before[:4], after[:4])
        except DataError as refused:
            assert "was being dealt again, and that was stopped:\nrun the same `mast split` again" in str(
                refused
            )
        resplit(str(out), config)
        assert dealt(out) == after, tried[-1]
        shutil.rmtree(out)
    assert number > 7


def test_prepare_brings_back_what_a_split_that_was_killed_left(
    prepared_dir, noise_archive, tmp_path, monkeypatch
):
    """Not dealt once more: training recordings would be held out without a word."""
    out = grown(prepared_dir, tmp_path / "out")
    before = dealt(out)
    with stopped_at(monkeypatch, 8), pytest.raises(Killed):
        resplit(str(out), apply_overrides(field(), {"seed": 4}))
    assert not (out / "manifest.json").exists()
    inputs = PrepareInputs(str(noise_archive), str(out), str(noise_archive.parent / "labels.csv"))
    assert prepare(inputs, apply_overrides(field(), {"audio.timezone": "UTC"}), runner=HERE) == 4
    side = [
        [(row["recording_id"], row["begin_s"], row["split"]) for row in one[0]]
        for one in (before, dealt(out))
    ]
    assert side[0] == side[1] and not dealt(out)[-1]
