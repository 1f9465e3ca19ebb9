"""One trial of the search over supervised loss weights: a short detector training on expert labels with a sample of them.

`mast tune --over loss`. A trial trains as many epochs as both stages of a trial of self-training together; its folder holds
its diary and its own checkpoints, so one that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import apply_overrides, flatten
from mast_ray.config.stage_knobs import rescaled_epochs
from mast_ray.config.tree import Config
from mast_ray.self_training.trial_records import FOLDER, LAST, Diary, Report, trial_name
from mast_ray.stages.search.trial import FACTORS, LOSSES, TrialWorker, trained_figures, written_result
from mast_ray.stages.train.work import DetectorTask, init_hash
from mast_ray.storage.storage import open_storage
from mast_ray.training.worker import first_device

SECTION = "detector"


@dataclass(frozen=True)
class LossTask:
    """What all trials share: what they learn, and what they begin with (neither: fresh weights)."""

    config: Config
    prepared: str
    out: str
    init_encoder: str = ""
    init_detector: str = ""

    def learner(self, config: Config, out: str) -> DetectorTask:
        return DetectorTask(
            config, self.prepared, out, SECTION, init_encoder=self.init_encoder, init_detector=self.init_detector,
            select_on=config.tune.objective_split,
        )  # fmt: skip

    @property
    def parameters(self) -> tuple[str, ...]:
        """What is searched: of tune.parameters those that a supervised training has."""
        found = tuple(name for name in self.config.tune.parameters if name in (*LOSSES, *FACTORS))
        if not found:
            raise ConfigError(
                f"tune.parameters names nothing that a supervised training has: give some of "
                f"{', '.join((*LOSSES, *FACTORS))}"
            )
        return found

    def settings(self) -> dict[str, Any]:
        """Everything the result of a trial depends on besides its sample."""
        config = self.config
        sections = {
            SECTION: config.detector.model_dump(mode="json"),
            "model": config.model.model_dump(mode="json"),
            "augment": config.augment.model_dump(mode="json"),
            "evaluate": config.evaluate.model_dump(mode="json", exclude={"batch_size", "bootstrap"}),
            "split": config.split.model_dump(mode="json", include={"budget_chunks", "budget_strategy"}),
            "labels": config.labels.model_dump(mode="json", include={"time_only"}),
            "spectrogram": config.spectrogram.model_dump(mode="json"),
        }
        task = self.learner(config, self.out)
        inits = {name: init_hash(task, name) for name in ("init_encoder", "init_detector")}
        return flatten(sections) | inits | {"cluster.lanes": config.cluster.lanes}

    def first_point(self) -> dict[str, float]:
        """The settings as they are."""
        own = {name: float(getattr(self.config.detector, name)) for name in LOSSES} | dict.fromkeys(
            FACTORS, 1.0
        )
        return {name: own[name] for name in self.parameters}


def loss_overrides(config: Config, sample: Mapping[str, float]) -> dict[str, Any]:
    """A sample as config keys; factors multiply what the training has."""
    own = config.detector
    return {
        f"{SECTION}.{name}": float(value) * (getattr(own, name) if name in FACTORS else 1.0)
        for name, value in sample.items()
    }


def short_training(config: Config) -> Config:
    """The training cut to the epochs of a trial; warm-up and unfreezing keep their share of the schedule."""
    epochs = config.tune.epochs_stage1 + config.tune.epochs_stage2
    changed = rescaled_epochs(config.detector, epochs) | {"validate_every_epochs": 1.0, "min_steps": 0}
    overrides: dict[str, Any] = {f"{SECTION}.{name}": value for name, value in changed.items()}
    return apply_overrides(config, overrides | {"cluster.checkpoint_every_steps": 0})


def run_loss_trial(
    task: LossTask, sample: Mapping[str, float], report: Report, num_threads: int = 1
) -> dict[str, Any]:
    """Train with a sample; `report` hears after every epoch. A finished trial answers from its folder."""
    folder = open_storage(task.out, task.config.storage).at(f"{FOLDER}/{trial_name(sample)}")
    if (known := written_result(folder, report)) is not None:
        return known
    diary = Diary(folder, sample, report)
    torch.set_num_threads(num_threads)
    config = apply_overrides(short_training(task.config), loss_overrides(task.config, sample))
    worker = TrialWorker(first_device(config.cluster.use_gpu), diary, {"stage": SECTION})
    return diary.tell(trained_figures(task.learner(config, folder.at(SECTION).url), SECTION, worker), LAST)
