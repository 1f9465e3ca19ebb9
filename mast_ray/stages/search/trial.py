"""One trial of the training search: pseudo-labels with the sampled threshold, a short stage 1, a
short stage 2, all in one process.

Pseudo-labels come from detections stored once, so a trial infers nothing but validation. Its folder holds its
diary and its own checkpoints: a trial that was killed goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from mast_ray.config.loading import apply_overrides, flatten
from mast_ray.config.stage_knobs import rescaled_epochs
from mast_ray.config.tree import Config
from mast_ray.self_training.curriculum import steps_of
from mast_ray.self_training.trial_records import FOLDER, LAST, RESULT, Diary, Report, trial_name
from mast_ray.stages.self_train.operator_task import Teacher
from mast_ray.stages.self_train.pseudo_stage import make_pseudo_labels
from mast_ray.stages.train.export import CHECKPOINTS
from mast_ray.stages.train.summary import SUMMARY, read_summary
from mast_ray.stages.train.work import DetectorTask
from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.data.labels import LabelSource
from mast_ray.training.worker import LocalWorker, first_device

FACTORS = ("backbone_multiplier", "learning_rate")  # sampled as factors of each stage's own value
LOSSES = ("lambda_cls", "lambda_box", "lambda_iou", "lambda_con")
_NOT_IN_A_TRIAL = {
    "rounds", "governor", "governor_density_ratio", "governor_min_agreement", "score_parts"
}  # fmt: skip


@dataclass(frozen=True)
class TrialTask:
    """What all trials share."""

    config: Config
    prepared: str
    detector: str
    detections: str  # of the pool, by that detector
    teacher: Teacher
    out: str  # trials/<name of the sample> below it are their folders


def trial_settings(task: TrialTask) -> dict[str, Any]:
    """Everything the result of a trial depends on besides its sample: trials of other
    settings are no part of a search.
    """
    config = task.config
    sections = {
        "self_train": config.self_train.model_dump(mode="json", exclude=_NOT_IN_A_TRIAL),
        "evaluate": config.evaluate.model_dump(mode="json", exclude={"batch_size", "bootstrap"}),
        "augment": config.augment.model_dump(mode="json"),
        "split": config.split.model_dump(mode="json", include={"budget_chunks", "budget_strategy"}),
        "teacher": asdict(task.teacher),
        "labels": config.labels.model_dump(mode="json", include={"time_only"}),
        "spectrogram": config.spectrogram.model_dump(mode="json", include={"min_remnant_s"}),
    }
    return flatten(sections) | {"cluster.lanes": config.cluster.lanes}


class TrialWorker(LocalWorker):
    """Tells the search the best F1 so far after every validation of a stage,
    whichever process has seen it.
    """

    def __init__(self, device: torch.device, diary: Diary, known: Mapping[str, Any]) -> None:
        super().__init__(device)
        self._diary, self._known = diary, dict(known)

    def report(self, metrics: Mapping[str, float]) -> None:
        if "f1" in metrics:
            stage, step = self._known["stage"], round(metrics["step"])
            best = max(self._diary.best_before(stage, step), float(np.nan_to_num(metrics["f1"])))
            self._diary.tell(self._known | {"objective": best}, f"{stage}:{step}")


def sampled_overrides(config: Config, sample: Mapping[str, float]) -> dict[str, Any]:
    """A sample as config keys; factors multiply what each stage has, everything
    else is set for both stages.
    """
    overrides: dict[str, Any] = {}
    for name, value in sample.items():
        value = float(value)
        if name == "threshold":
            overrides |= {"self_train.policy": "fixed", "self_train.threshold": value}
        elif name == "empty_weight":
            overrides |= {"self_train.empty_chunks": "negative", "self_train.empty_weight": value}
        else:
            for stage in ("stage1", "stage2"):
                own = getattr(getattr(config.self_train, stage), name)
                overrides[f"self_train.{stage}.{name}"] = own * value if name in FACTORS else value
    return overrides


def short_config(config: Config) -> Config:
    """Stages cut to the epochs of a trial; warm-up and unfreezing keep their share of the schedule."""
    overrides: dict[str, Any] = {"cluster.checkpoint_every_steps": 0}
    for stage, epochs in (("stage1", config.tune.epochs_stage1), ("stage2", config.tune.epochs_stage2)):
        knobs = getattr(config.self_train, stage)
        changed = rescaled_epochs(knobs, epochs) | {"validate_every_epochs": 1.0, "min_steps": 0}
        overrides |= {f"self_train.{stage}.{name}": value for name, value in changed.items()}
    return apply_overrides(config, overrides)


def run_trial(
    task: TrialTask, sample: Mapping[str, float], report: Report, num_threads: int = 1
) -> dict[str, Any]:
    """Train with a sample; `report` hears after every epoch. A finished trial answers from its folder."""
    folder = open_storage(task.out, task.config.storage).at(f"{FOLDER}/{trial_name(sample)}")
    if (known := written_result(folder, report)) is not None:
        return known
    diary = Diary(folder, sample, report)
    torch.set_num_threads(num_threads)
    config = apply_overrides(short_config(task.config), sampled_overrides(task.config, sample))
    prepared = open_prepared(task.prepared, config.storage)
    detections = open_storage(task.detections, config.storage)
    pseudo = make_pseudo_labels(config, prepared, detections, folder.at("pseudo").url, task.teacher)
    result: dict[str, Any] = {
        "objective": 0.0,
        "stage": "",
        "boxes_per_chunk": pseudo.figures["figures"]["boxes_per_chunk"],
    }
    # a threshold above every score: a poor trial, also where empty chunks are kept as negatives
    if pseudo.figures["train_chunks"] == 0 or not result["boxes_per_chunk"]:
        return diary.tell(result, LAST)
    models = {"teacher": task.detector}
    if config.self_train.student == "fresh":  # begins with no weights, as in the rounds that it is tried for
        models["teacher"] = ""
    for step in steps_of(config.self_train.curriculum):
        models[step.name] = folder.at(step.name).url
        labels = LabelSource() if step.labels == "expert" else replace(pseudo.source, name=step.labels)
        learner = DetectorTask(
            config, task.prepared, models[step.name], step.section, labels, init_detector=models[step.start],
            select_on=config.tune.objective_split,
        )  # fmt: skip
        worker = TrialWorker(first_device(config.cluster.use_gpu), diary, result | {"stage": step.name})
        result |= trained_figures(learner, step.name, worker)
    return diary.tell(result, LAST)


def written_result(folder: Storage, report: Report) -> dict[str, Any] | None:
    """What a finished trial found, reported again; None: it is not finished."""
    if folder.stat(RESULT) is None:
        return None
    known: dict[str, Any] = json.loads(folder.read_bytes(RESULT))
    report(known)
    return known


def trained_figures(learner: DetectorTask, stage: str, worker: TrialWorker) -> dict[str, Any]:
    """What a trial says of a training of its own, once that is done."""
    own = open_storage(learner.out, learner.config.storage)
    if own.stat(SUMMARY) is None:  # written when a training is finished
        learner.run(worker)
    found = read_summary(own).best
    f1 = float(found.get("f1", 0.0))
    drop_checkpoints(own)
    return {
        "objective": f1,
        "stage": stage,
        f"{stage}_f1": f1,
        "score_threshold": float(found.get("threshold", 1.0)),
    }


def drop_checkpoints(folder: Storage) -> None:
    """Training state of a finished trial is of no use to anybody."""
    remove_folder(folder.at(CHECKPOINTS))
