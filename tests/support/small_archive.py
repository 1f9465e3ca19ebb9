"""A prepared archive small enough to train on in seconds: loud tones in noise, with their boxes."""

from pathlib import Path

import numpy as np
import soundfile

from mast_ray.config.recipes import tiny
from mast_ray.config.tree import Config
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE

RATE_HZ = 16_000


def small_config(**knobs) -> Config:
    """The tiny recipe with shorter schedules still, on CPU, and the adapter whose steps take less than half as long."""
    from mast_ray.config.loading import apply_overrides

    return apply_overrides(
        tiny(),
        {
            "audio.timezone": "UTC",
            "model.adapter": "upsampling",
            "pretrain.epochs": 3,
            "pretrain.batch_size": 4,
            "pretrain.warmup_epochs": 0.5,
            "detector.epochs": 2,
            "detector.batch_size": 4,
            "self_train.stage2.min_steps": 0,
            "evaluate.batch_size": 4,
            "cluster.lanes": 4,
            "cluster.reader_threads": 1,
            "cluster.use_gpu": "no",
            "cluster.checkpoint_every_steps": 2,
        }
        | knobs,
    )


def make_prepared(
    root: Path, num_recordings: int = 8, seconds: int = 16, level: float = 1.0, tones: str = "loud"
) -> Path:
    """Prepare recordings with a tone every four seconds, all times `level`; returns the PREPARED folder."""
    write_sound(root, num_recordings, seconds, level, tones)
    inputs = PrepareInputs(str(root / "archive"), str(root / "prepared"), str(root / "labels.csv"))
    assert prepare(inputs, small_config(), runner=HERE) == 0
    return root / "prepared"


def write_sound(
    root: Path, num_recordings: int = 8, seconds: int = 16, level: float = 1.0, tones: str = "loud"
) -> None:
    """root/archive and root/labels.csv; `tones` none: boxes of noise alone."""
    rows = ["path,begin_s,end_s,low_hz,high_hz,label"]
    loudness = 0.3 if tones == "loud" else 0.0
    for number in range(num_recordings):
        name = f"S{number % 2}/S{number % 2}_2024050{number // 2 + 1}_060000.wav"
        rng = np.random.default_rng(number)
        samples = rng.normal(0, 0.01, seconds * RATE_HZ)
        for begin in range(1, seconds - 1, 4):
            hertz = float(rng.uniform(1000, 5000))
            time = np.arange(RATE_HZ) / RATE_HZ
            samples[begin * RATE_HZ : (begin + 1) * RATE_HZ] += loudness * np.sin(2 * np.pi * hertz * time)
            rows.append(f"{name},{begin},{begin + 1},{hertz - 150:.1f},{hertz + 150:.1f},tone")
        path = root / "archive" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, (samples * level).astype(np.float32), RATE_HZ, "PCM_16")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
