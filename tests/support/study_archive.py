"""A prepared archive for studies: two sonotypes in noise, every kind of split, and
recordings that nobody has annotated.
"""

from pathlib import Path

import numpy as np
import soundfile

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.config.tree import Config
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE

RATE_HZ, SECONDS = 16_000, 16
TONES_HZ = {"low": 900.0, "high": 4200.0}


def study_config(**knobs) -> Config:
    """The tiny recipe with one epoch of everything, on CPU."""
    epochs = {f"{s}.epochs": 1 for s in ("pretrain", "detector", "self_train.stage1", "self_train.stage2")}
    return apply_overrides(
        tiny(),
        epochs
        | {
            "audio.timezone": "UTC",
            "split.ood_sites": ["S2"],
            "split.ood_dates": ["2024-05-09"],
            "pretrain.batch_size": 4,
            "detector.batch_size": 4,
            "self_train.rounds": 1,
            "self_train.stage1.batch_size": 4,
            "self_train.stage2.batch_size": 4,
            "self_train.stage2.min_steps": 0,
            "self_train.policy": "fixed",
            "self_train.threshold": 0.0,
            "self_train.governor": "off",
            "evaluate.batch_size": 8,
            "evaluate.bootstrap": 50,
            "evaluate.max_detections": 20,
            "cluster.lanes": 4,
            "cluster.reader_threads": 1,
            "cluster.use_gpu": "no",
        }
        | {key.replace("__", "."): value for key, value in knobs.items()},
    )


def make_study_archive(root: Path) -> Path:
    """Seven annotated recordings at S0 (one on the held-out date), two at the held-out
    site S2, two unlabelled at S1.
    """
    names = [
        f"S0/S0_2024050{day}_0{hour}0000.wav"
        for day, hour in ((1, 1), (1, 7), (2, 2), (2, 8), (3, 3), (3, 9), (9, 6))
    ]
    names += ["S2/S2_20240501_060000.wav", "S2/S2_20240502_180000.wav"]
    unlabelled = ["S1/S1_20240501_060000.wav", "S1/S1_20240502_180000.wav"]
    rows = ["path,begin_s,end_s,low_hz,high_hz,label"]
    for number, name in enumerate([*names, *unlabelled]):
        samples = np.random.default_rng(number).normal(0, 0.01, SECONDS * RATE_HZ)
        time_s = np.arange(RATE_HZ) / RATE_HZ
        for place, begin in enumerate(range(1, SECONDS - 1, 3)):
            label = ("low", "high")[(place + number) % 2]
            tone = 0.3 * np.sin(2 * np.pi * TONES_HZ[label] * time_s)
            samples[begin * RATE_HZ : (begin + 1) * RATE_HZ] += tone
            if name in names:
                low_hz, high_hz = TONES_HZ[label] - 200, TONES_HZ[label] + 200
                rows.append(f"{name},{begin},{begin + 1},{low_hz},{high_hz},{label}")
        path = root / "archive" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples.astype(np.float32), RATE_HZ, "PCM_16")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    inputs = PrepareInputs(str(root / "archive"), str(root / "prepared"), str(root / "labels.csv"))
    assert prepare(inputs, study_config(), runner=HERE) == 0
    return root / "prepared"


def write_fresh_detector(folder: Path, prepared: Path, threshold: float = 0.05) -> Path:
    """A model folder with random weights: enough to embed and to detect something."""
    import torch

    from mast_ray.models.build import build_detector
    from mast_ray.storage.storage import open_storage
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.training.assembly import architecture_of
    from mast_ray.training.files.model_files import Card, write_model

    model = study_config().model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = build_detector(architecture_of(model)).state_dict()
    normalisation = open_prepared(prepared).normalisation().to_dict()
    card = Card("detector", model.model_dump(mode="json"), normalisation, score_threshold=threshold)
    write_model(open_storage(folder), weights, card)
    return folder
