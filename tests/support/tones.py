"""Recordings of tones in faint noise, and a detector that sees them by their energy:
a perfect one, window by window.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile as sf
import torch
from scipy import ndimage

from mast_ray.boxes.batch import Detections
from mast_ray.config.recipes import tiny
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.stages.detect.detect import Sweep, settings_of
from mast_ray.stages.detect.load_work import work_of
from mast_ray.stages.runner import HERE, RUNNERS
from mast_ray.storage.storage import open_storage
from mast_ray.tables.preparing.inventory import list_archive
from mast_ray.training.files.model_files import Card

PLAIN = Normalisation(0.0, 1.0, 1.0, 0.0)  # the detector below reads log-mel as it is
CARD = Card("detector", {}, PLAIN.to_dict(), weights_sha256="f" * 64, score_threshold=0.5)
LOUD = 3.0  # log-mel: noise lies at -8, tones above 6


class Tone(NamedTuple):
    begin_s: float
    end_s: float
    hertz: float


def sound_of(tones, duration_s, rate_hz, seed=0):
    """Tones of amplitude 0.3 in noise of 0.001."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    sound = 0.001 * np.random.default_rng(seed).standard_normal(len(time_s))
    for tone in tones:
        inside = (time_s >= tone.begin_s) & (time_s < tone.end_s)
        sound[inside] += 0.3 * np.sin(2 * np.pi * tone.hertz * time_s[inside])
    return sound.astype(np.float32)


def write_tones(path: Path, tones, duration_s, rate_hz=16_000, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    sf.write(path, sound_of(tones, duration_s, rate_hz, seed), rate_hz, subtype="PCM_16")


class ToneDetector:
    """Boxes around connected loud cells of each window."""

    def detect(self, logmel, score_floor=0.01, nms_overlap=0.5, max_detections=300, end_frames=None):
        threading.Event().wait(float(os.environ.get("TONES_WAIT_S", 0)))  # as slow as a large model
        num_slots = 16
        corners = torch.zeros(len(logmel), num_slots, 4)
        score = torch.zeros(len(logmel), num_slots)
        for row, chunk in enumerate(logmel[:, 0].numpy()):
            cells, _ = ndimage.label(chunk > LOUD, np.ones((3, 3)))
            for slot, (time, frequency) in enumerate(ndimage.find_objects(cells)[:num_slots]):
                corners[row, slot] = torch.tensor([time.start, frequency.start, time.stop, frequency.stop])
                score[row, slot] = 0.9
        return Detections(corners, score, score > 0)

    def embed_boxes(self, logmel, boxes, name):
        return boxes / boxes.new_tensor([1024.0, 128.0, 1024.0, 128.0])


@dataclass(frozen=True)
class ToneWork:
    """Makes the work of a ToneDetector wherever it is called."""

    archive: object
    stage: object
    config: object
    threshold: float = 0.0

    def __call__(self, workers):
        return _MakeToneWork(self, workers)


@dataclass(frozen=True)
class _MakeToneWork:
    maker: ToneWork
    workers: object

    def __call__(self):
        of = self.maker
        return work_of(
            ToneDetector(), CARD, of.config, self.workers, of.archive, of.stage, None, of.threshold
        )


def tone_config(**overrides):
    from mast_ray.config.loading import apply_overrides

    return apply_overrides(tiny(), {"audio.timezone": "UTC", "cluster.use_gpu": "no"} | overrides)


def sweep_tones(archive, out, runner=HERE, threshold=0.0, config=None):
    """What `mast detect` does, with the tone detector; returns the exit code."""
    config = config or tone_config()
    source, stage = open_storage(archive, config.storage), open_storage(out, config.storage)
    items = list_archive(source).items
    sweep = Sweep(source, stage, items, config, None, settings_of(config, CARD, threshold))
    code = sweep.code_if_done()
    return sweep.run(runner, ToneWork(source, stage, config, threshold)) if code is None else code


def write_archive(root: Path, num_per_site=4, duration_s=30.0, sites=("A", "B")):
    """Every recording has its own tones; one of each site is damaged. Returns
    path -> tones of the good ones.
    """
    truth = {}
    for number, site in enumerate(sites):
        for day in range(num_per_site):
            start = datetime(2024, 5, 1 + day, 6, 0, 0)
            path = f"{site}/{site}_{start:%Y%m%d_%H%M%S}.wav"
            tones = [
                Tone(1.0 + 0.37 * day + 5.3 * n, 1.5 + 0.37 * day + 5.3 * n, 1000.0 + 700 * n + 90 * number)
                for n in range(int(duration_s // 6))
            ]
            write_tones(root / path, tones, duration_s, seed=10 * number + day)
            truth[path] = tones
        (root / site / f"{site}_20240701_060000.wav").write_bytes(b"RIFF nothing")
    return truth


def committed_keys(out):
    """Names of all accepted data files; they carry content hashes."""
    from mast_ray.storage.units import read_commits

    return sorted(file.key for commit in read_commits(open_storage(out)) for file in commit.files)


if __name__ == "__main__":
    # python tones.py ARCHIVE OUT RUNNER [ENDPOINT]: a sweep in a process of its own,
    # to be killed or started twice
    from mast_ray.config.errors import MastError
    from mast_ray.verbs.main import _leave

    named = {"storage.endpoint_url": sys.argv[4], "storage.region": "us-east-1"} if len(sys.argv) > 4 else {}
    try:
        from tones import sweep_tones as sweep  # by its module's name, so that Ray's workers find it

        code = sweep(sys.argv[1], sys.argv[2], RUNNERS[sys.argv[3]], config=tone_config(**named))
    except MastError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    _leave(code)  # as `mast` does: the interpreter's own end may meet threads of libraries halfway
