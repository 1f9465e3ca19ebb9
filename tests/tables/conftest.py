"""A small prepared archive made of noise: short and long recordings, two copies, one broken file, labels."""

import pytest
from noise_files import write_noise

from mast_ray.config.recipes import field
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.tables.prepared import open_prepared


@pytest.fixture(scope="session")
def noise_archive(tmp_path_factory):
    """S1..S3 with two 20 s recordings each, a 400 s one, a 3 s one, a copy and an empty file."""
    root = tmp_path_factory.mktemp("noise") / "archive"
    for site in range(3):
        for day in range(2):
            write_noise(root / f"S{site}" / f"S{site}_2024050{day + 1}_060000.wav", 20, 10 * site + day)
    write_noise(root / "S0" / "S0_20240503_120000.wav", 400, 99)
    write_noise(root / "S1" / "S1_20240503_120000.wav", 3, 98)
    (root / "S2" / "copy.wav").write_bytes((root / "S2" / "S2_20240501_060000.wav").read_bytes())
    (root / "S2" / "empty.wav").write_bytes(b"")
    rows = ["path,begin_s,end_s,low_hz,high_hz,label"]
    rows += [
        f"S{s}/S{s}_2024050{d + 1}_060000.wav,4.9,6.2,2000,3000,call" for s in range(3) for d in range(2)
    ]
    rows += ["S0/S0_20240503_120000.wav,100.0,101.0,1000,5000,call"]
    (root.parent / "labels.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.fixture(scope="session")
def prepared_dir(noise_archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "out"
    inputs = PrepareInputs(str(noise_archive), str(out), str(noise_archive.parent / "labels.csv"))
    config = field().model_copy(update={"audio": field().audio.model_copy(update={"timezone": "UTC"})})
    assert prepare(inputs, config, runner=HERE) == 4  # one file is no recording
    return out


@pytest.fixture(scope="session")
def prepared(prepared_dir):
    return open_prepared(prepared_dir)
