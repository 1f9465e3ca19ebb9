"""What one training worker does, with or without Ray: open the data, build the parts, fit, export.

A task is a small frozen value that travels to the workers; `run(worker)` is the same function in a cluster of
hundreds and in this interpreter. Only rank 0 writes.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.config.stage_knobs import DetectorTrainConfig, PretrainConfig, lengthened
from mast_ray.config.tree import Config
from mast_ray.evaluation.split_truth import selection_split
from mast_ray.inference.chunk_detector import Inputs
from mast_ray.inference.validation import DetectionValidation, MaskedErrorValidation, judged_by
from mast_ray.spectrogram.augmentation import AugmentStrength
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.stages.train.box_checks import durations_of, warn_of_random_encoder, warn_of_unlearned_boxes
from mast_ray.stages.train.data import chunk_reader, pretraining_chunks, training_data
from mast_ray.stages.train.export import card_of, export, run_files
from mast_ray.stages.train.student import (
    augment_of,
    is_taught_online,
    online_teacher,
    weighting_of,
)
from mast_ray.stages.train.summary import TrainSummary
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import (
    detection,
    engine_of,
    load_detector_weights,
    load_encoder_weights,
    reconstruction,
    with_finest_level,
)
from mast_ray.training.data.archive_inputs import ArchiveInputs, archive_inputs, start_card, weights_named
from mast_ray.training.data.augmenting import StepAugmentation, background_bank
from mast_ray.training.data.dealt_feed import DealtFeed
from mast_ray.training.data.feed import ReaderFeed
from mast_ray.training.data.labels import (
    LabelSource,
    quiet_chunks,
    refuse_untaught,
)
from mast_ray.training.data.mixed_reader import MixedReader
from mast_ray.training.engine import Objective, choose_precision
from mast_ray.training.files.began_with import origins_of
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.files.origins import How, Origins
from mast_ray.training.files.selection import Validation
from mast_ray.training.loop import FitOptions, FitResult, fit
from mast_ray.training.progress import flops_of_chunk, peak_flops_of
from mast_ray.training.schedule import Schedule, schedule_of
from mast_ray.training.worker import LocalWorker, Scorer, Worker, first_device

log = logging.getLogger("mast.training")

EXPERTS = LabelSource("expert")
_FREE_KNOBS = {"accumulate", "validate_every_epochs"}  # may change between a stop and a resume
_FREE_MODEL = {"compile"}
_STUDENT_KNOBS = {
    "expert_share", "teacher", "teacher_every_steps", "teacher_boxes", "pseudo_weight", "contrastive_on_pseudo",
    "nms_overlap", "min_duration_s", "min_bins", "empty_chunks", "empty_weight",
}  # fmt: skip


@dataclass(frozen=True)
class PretrainTask:
    """Masked pretraining on the pool of a prepared archive."""

    config: Config
    prepared: str
    out: str
    section: str = "pretrain"
    init_encoder: str = ""  # pretrain.init as any process sees it; the run is named by what was typed

    @property
    def knobs(self) -> PretrainConfig:
        return self.config.pretrain

    @property
    def can_be_dealt(self) -> bool:
        return True

    def dealt_reader(self, worker: Worker) -> ChunkReader:
        """Knows the chunks that can be dealt to this task's workers, by position."""
        prepared, _, _ = archive_inputs_of(self, say=False)
        return chunk_reader(
            prepared, pretraining_chunks(prepared)[0], self.config, self.knobs.batch_size, worker
        )

    def run(self, worker: Worker) -> TrainSummary:
        config = self.config
        prepared, normalisation, tail = archive_inputs_of(self, say=worker.rank == 0)
        pool, held = pretraining_chunks(prepared)
        objective = reconstruction(config)
        if self.init_encoder:
            load_encoder_weights(objective, self.init_encoder, config)
        began_with = _began_with(self, worker)
        reader = chunk_reader(prepared, pool, config, self.knobs.batch_size, worker)
        inputs = Inputs(normalisation, tail, worker.device, _precision(config, worker))
        validation = self._validation(objective, prepared, held, inputs, worker)
        schedule = schedule_of(self.knobs, len(pool))
        engine = engine_of(objective, config, self.knobs, schedule, worker, self.section)
        feed = feed_of(reader, worker, schedule, normalisation, tail=tail)
        identity = run_identity(self, prepared)
        result = _fit(self, worker, engine, feed, schedule, validation, identity)
        card = card_of("autoencoder", config, inputs, prepared, result, began_with=began_with)
        return export(open_storage(self.out, config.storage), worker, objective, card, result, len(pool))

    def _validation(
        self, objective: Objective, prepared: Prepared, held: ChunkSet, inputs: Inputs, worker: Worker
    ) -> MaskedErrorValidation:
        reader = chunk_reader(prepared, held, self.config, self.knobs.batch_size, worker)
        return MaskedErrorValidation(objective, reader, inputs, self.config.evaluate.batch_size)

    def validation(self, worker: Worker) -> MaskedErrorValidation:
        """What chooses the weights, by itself: for who scores them beside the training."""
        prepared, normalisation, tail = archive_inputs_of(self, say=False)
        inputs = Inputs(normalisation, tail, worker.device, _precision(self.config, worker))
        _, held = pretraining_chunks(prepared)
        return self._validation(reconstruction(self.config), prepared, held, inputs, worker)

    def scorer(self) -> Scorer:
        return _scorer(self)


@dataclass(frozen=True)
class DetectorTask:
    """Detector training, of any stage: what differs is knobs, labels and first weights."""

    config: Config
    prepared: str
    out: str
    section: str = "detector"  # detector, self_train.stage1 or self_train.stage2: where its knobs are
    labels: LabelSource = EXPERTS
    init_encoder: str = ""
    init_detector: str = ""
    select_on: str = ""  # split whose F1 selects the best weights, never a test split; empty: selection_split

    @property
    def knobs(self) -> DetectorTrainConfig:
        value: Any = self.config
        for part in self.section.split("."):
            value = getattr(value, part)
        return value

    def run(self, worker: Worker) -> TrainSummary:
        config, knobs = self.config, self.knobs
        prepared, normalisation, tail = archive_inputs_of(self, say=worker.rank == 0)
        data = training_data(prepared, self.labels, config, knobs, worker)
        knobs = lengthened(knobs, data.samples_per_epoch)
        reader, labelled = data.experts, data.labelled
        num_labels = len(prepared.labels if labelled.pseudo is None else labelled.pseudo)
        untaught = refuse_untaught(reader.boxes, num_labels, self.prepared, config.split.budget_chunks)
        if untaught and worker.rank == 0:
            log.warning("%s", untaught)
        config = with_finest_level(config, durations_of(reader), self.init_detector)
        objective = detection(config, knobs, worker.rank)
        if self.init_encoder:
            load_encoder_weights(objective, self.init_encoder, config)
        if self.init_detector:
            load_detector_weights(objective, self.init_detector, config)
        began_with = _began_with(self, worker)
        if worker.rank == 0:
            warn_of_unlearned_boxes(objective, reader)
            if not (self.init_encoder or self.init_detector):
                warn_of_random_encoder(objective, knobs, config.model, self.section)
        inputs = Inputs(normalisation, tail, worker.device, _precision(config, worker))
        validation = self._validation(objective, prepared, inputs)
        schedule = schedule_of(knobs, data.samples_per_epoch)
        engine = engine_of(objective, config, knobs, schedule, worker, self.section)
        strengths = augment_of(config, self.labels)
        strength = AugmentStrength.of_config(strengths)
        bank = None
        if strength.needs_bank and knobs.augment_probability > 0:
            quiet = partial(quiet_chunks, reader, prepared, labelled, config)
            bank = background_bank(
                prepared,
                quiet,
                strengths.background_from,
                normalisation,
                tail,
                worker.device,
                config.seed,
            )
        augmentation = StepAugmentation(
            strength,
            knobs.augment_probability,
            normalisation,
            batch_size=schedule.batch_size,
            seed=config.seed,
            device=worker.device,
            noise_bank=bank,
            hidden_boxes=strengths.hidden_boxes,
        )
        recorded, own = config.model.records_on(worker.device.type), self.own_card()
        taught_slots = config.self_train.teacher_boxes if is_taught_online(config, self.labels) else 0
        feed = feed_of(
            data.reader,
            worker,
            schedule,
            normalisation,
            tail=tail,
            augmentation=augmentation if knobs.augment_probability > 0 else None,
            weighting=weighting_of(knobs, self.labels),
            least_slots=max(data.least_slots(), taught_slots) if recorded else 0,
            labeller=online_teacher(config, self.labels, objective, engine, inputs.precision, recorded, own),
            pseudo_weight=config.self_train.pseudo_weight,
        )
        identity = run_identity(self, prepared)
        result = _fit(self, worker, engine, feed, schedule, validation, identity)
        card = card_of("detector", config, inputs, prepared, result, own, began_with)
        return export(
            open_storage(self.out, config.storage), worker, objective, card, result, len(data.reader)
        )

    @property
    def can_be_dealt(self) -> bool:
        """Whether all its chunks are of one kind: a fixed share of each kind is not dealt out."""
        return self.labels.name not in ("mixed", "truth", "control")

    def dealt_reader(self, worker: Worker) -> ChunkReader:
        """Knows the chunks that can be dealt to this task's workers, by position."""
        prepared, _, _ = archive_inputs_of(self, say=False)
        return training_data(prepared, self.labels, self.config, self.knobs, worker).experts

    def validation(self, worker: Worker) -> DetectionValidation | None:
        """What chooses the weights, by itself: for who scores them beside the training."""
        prepared, normalisation, tail = archive_inputs_of(self, say=False)
        reader = training_data(prepared, self.labels, self.config, self.knobs, worker).experts
        config = with_finest_level(self.config, durations_of(reader), self.init_detector)
        inputs = Inputs(normalisation, tail, worker.device, _precision(config, worker))
        return self._validation(detection(config, self.knobs, worker.rank), prepared, inputs)

    def scorer(self) -> Scorer:
        return _scorer(self)

    def held_out(self, prepared: Prepared) -> ChunkSet:
        """The chunks that choose the best weights."""
        return chunks_of_split(prepared, self.select_on or selection_split(prepared))

    def _validation(
        self, objective: Objective, prepared: Prepared, inputs: Inputs
    ) -> DetectionValidation | None:
        try:
            held = self.held_out(prepared)
        except DataError:
            log.warning(
                "%s has no validation split: the last weights are kept, without a threshold", self.prepared
            )
            return None
        batch_size, num_threads = self.config.evaluate.batch_size, self.config.cluster.reader_threads
        reader = ChunkReader(prepared, held, batch_size=batch_size, num_threads=num_threads)
        own = self.own_card()
        return DetectionValidation(objective.detector, prepared, reader, inputs, self.config, own)

    def own_card(self) -> Card | None:
        """Of the detector that training begins with."""
        init = self.init_detector
        return read_card(init, self.config.storage) if init else None


def _scorer(task: PretrainTask | DetectorTask) -> Scorer:
    """Figures of the weights that a run has put aside at a step, made where this is called; none where they are gone."""
    worker = LocalWorker(first_device(task.config.cluster.use_gpu))
    validation = task.validation(worker)
    best = run_files(open_storage(task.out, task.config.storage), 1).best

    def figures(step: int) -> dict[str, float]:
        try:
            weights = best.read(step)
        except DataError:
            return {}
        return {} if validation is None else validation.measure(weights, worker)

    return figures


def identity_of(task: PretrainTask | DetectorTask, prepared: Prepared) -> dict[str, Any]:
    """Everything a run's weights depend on: a checkpoint that differs in any of it belongs to another run."""
    knobs = task.knobs.model_dump(mode="json", exclude=_FREE_KNOBS)
    model = task.config.model.model_dump(mode="json", exclude=_FREE_MODEL)
    parts: dict[str, Any] = {f"{task.section}.{key}": value for key, value in knobs.items()}
    parts |= {f"model.{key}": value for key, value in model.items()}
    parts |= {
        "seed": task.config.seed,
        "data": data_hash(prepared),
        "cluster.lanes": task.config.cluster.lanes,
    }
    if task.config.cluster.feed == "ray_data" and task.can_be_dealt:
        parts["cluster.feed"] = (
            "ray_data"  # another order of samples; runs that began before there was a choice go on
        )
    parts["spectrogram"] = task.config.spectrogram.model_dump(mode="json")
    if isinstance(task, DetectorTask):
        parts["augment"] = augment_of(task.config, task.labels).model_dump(mode="json")
        if task.labels.name != "expert":
            own = task.config.self_train.model_dump(mode="json", include=_STUDENT_KNOBS)
            parts |= {f"self_train.{key}": value for key, value in own.items()}
        parts["split.budget"] = [task.config.split.budget_chunks, task.config.split.budget_strategy]
        if task.config.labels.time_only != "ignore":
            parts["labels.time_only"] = task.config.labels.time_only
        parts |= judged_by(task.config)
        chooses = task.select_on or selection_split(prepared)
        if chooses != "val":  # runs that began before there was a choice go on
            parts["select_on"] = chooses
    return json.loads(json.dumps(parts))


def run_identity(task: PretrainTask | DetectorTask, prepared: Prepared) -> dict[str, Any]:
    """The same, and what the run starts from and learns: what its checkpoints carry."""
    if isinstance(task, PretrainTask):
        return identity_of(task, prepared) | {"init": task.knobs.init}
    inits = {name: init_hash(task, name) for name in ("init_encoder", "init_detector")}
    return identity_of(task, prepared) | inits | {"labels": task.labels.describe()}


def init_hash(task: DetectorTask, name: str) -> str:
    """Names the weights a task starts from."""
    return weights_named(getattr(task, name), task.config.storage)


def archive_inputs_of(task: PretrainTask | DetectorTask, say: bool = True) -> ArchiveInputs:
    """The archive of a task as the model it starts from takes it; from nothing, as the settings say."""
    detector = "" if isinstance(task, PretrainTask) else task.init_detector
    starts = (detector, task.init_encoder)
    card = start_card(task.config, *starts)
    prepared = open_prepared(task.prepared, task.config.storage)
    where = next((start for start in starts if start), "")
    return archive_inputs(prepared, task.config, card, where, say)


def _began_with(task: PretrainTask | DetectorTask, worker: Worker) -> Origins:
    """For the card, which rank 0 writes; looked up before hours pass in which a folder may go away."""
    if worker.rank != 0:
        return ()
    if isinstance(task, PretrainTask):
        return origins_of([("start", task.init_encoder)], task.config.storage)
    starts: list[tuple[How, str]] = [("start", task.init_detector), ("encoder", task.init_encoder)]
    return origins_of(starts, task.config.storage, task.labels)


def feed_of(
    reader: ChunkReader | MixedReader,
    worker: Worker,
    schedule: Schedule,
    normalisation: Normalisation,
    **options: Any,
) -> ReaderFeed:
    """Batches of what is dealt to the worker, or of what it reads."""
    if worker.deal is None:
        return ReaderFeed(reader, worker, schedule, normalisation, **options)
    assert isinstance(reader, ChunkReader), "chunks of two kinds are not dealt"
    return DealtFeed(reader, worker.deal, worker, schedule, normalisation, **options)


def _precision(config: Config, worker: Worker) -> Any:
    return choose_precision(config.cluster.precision, worker.device)


def _fit(
    task: PretrainTask | DetectorTask,
    worker: Worker,
    engine: Any,
    feed: ReaderFeed,
    schedule: Schedule,
    validation: Validation | None,
    identity: dict[str, Any],
) -> FitResult:
    storage = open_storage(task.out, task.config.storage)
    options = FitOptions(
        checkpoint_every_steps=task.config.cluster.checkpoint_every_steps,
        flops_per_sample=flops_of_chunk(engine.objective, worker.device),
        peak_flops=peak_flops_of(worker.device),
        section=task.section,
    )
    return fit(worker, engine, feed, schedule, validation, run_files(storage, worker.rank), identity, options)
