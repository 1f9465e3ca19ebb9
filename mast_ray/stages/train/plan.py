"""What a training command would do, with every derived quantity, before it does anything."""

from __future__ import annotations

import torch

from mast_ray.config.stage_knobs import DetectorTrainConfig, PretrainConfig, lengthened
from mast_ray.config.tree import Config
from mast_ray.stages.train.box_checks import durations_of
from mast_ray.stages.train.data import pretraining_chunks
from mast_ray.stages.train.pool import TaskPool
from mast_ray.stages.train.work import DetectorTask, PretrainTask
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import detection, groups_of, reconstruction, with_finest_level
from mast_ray.training.data.labels import attach_boxes, labelled_chunks
from mast_ray.training.ema import average_decay, rescaled_decay
from mast_ray.training.engine import choose_precision
from mast_ray.training.engine_choice import choose_engine
from mast_ray.training.schedule import samples_per_worker, schedule_of
from mast_ray.training.worker import first_device


def plan_text(task: PretrainTask | DetectorTask) -> str:
    """Lines for people."""
    config = task.config
    knobs: PretrainConfig | DetectorTrainConfig = task.knobs
    prepared = open_prepared(task.prepared, config.storage)
    if isinstance(task, PretrainTask):
        pool, held = pretraining_chunks(prepared)
        num_chunks, data = len(pool), f"{len(pool)} chunks of the pool, {len(held)} held out"
        objective: torch.nn.Module = reconstruction(config)
    else:
        labelled = labelled_chunks(prepared, task.labels, config)
        num_chunks, data = (
            len(labelled.chunks),
            f"{len(labelled.chunks)} chunks ({task.labels.describe()} labels)",
        )
        if config.model.finest_level == "auto":
            reader = ChunkReader(prepared, labelled.chunks, batch_size=knobs.batch_size)
            attach_boxes(reader, prepared, labelled, config.spectrogram.min_remnant_s)
            config = with_finest_level(config, durations_of(reader), task.init_detector)
        knobs = lengthened(task.knobs, num_chunks)
        objective = detection(config, knobs)
    schedule = schedule_of(knobs, num_chunks)
    share = samples_per_worker(knobs.batch_size, knobs.accumulate, config.cluster.num_workers, task.section)
    groups = groups_of(objective, knobs, config.model)
    parameters = dict(objective.named_parameters())
    size = lambda names: sum(parameters[name].numel() for name in names)  # noqa: E731
    lines = [
        f"data       {data}",
        f"model      {config.model.name} {config.model.size}, finest level {config.model.finest_level}, {sum(p.numel() for p in parameters.values()) / 1e6:.1f} M parameters",
        f"steps      {schedule.num_steps} = {schedule.steps_per_epoch} per epoch x {knobs.epochs} epochs"
        + (
            f", cut to max_steps={knobs.max_steps}"
            if schedule.num_steps < schedule.steps_per_epoch * knobs.epochs
            else ""
        ),
        f"batch      {knobs.batch_size} = {config.cluster.num_workers} workers x {knobs.accumulate} parts x {share} chunks"
        + (" or one less" if knobs.batch_size % (config.cluster.num_workers * knobs.accumulate) else ""),
        f"samples    {schedule.num_samples} seen, warm-up over {round(knobs.warmup_epochs * schedule.steps_per_epoch)} steps",
        f"rate       {knobs.learning_rate:g} -> {knobs.min_learning_rate:g}, weight decay {knobs.weight_decay:g}, clip {knobs.clip_norm:g}",
        f"engine     {_engine_text(config)}",
    ]
    if config.cluster.feed == "ray_data" and task.can_be_dealt:
        dealt = TaskPool(task).plan()
        lines.append(
            f"feed       ray_data: {len(dealt.bundles):,} bundles, {dealt.num_bytes / 1e9:.3g} GB of the object store"
        )
    if isinstance(knobs, DetectorTrainConfig):
        decay = average_decay(knobs.ema_decay, knobs.batch_size, schedule.num_steps)
        wanted = rescaled_decay(knobs.ema_decay, knobs.batch_size)
        reason = f": {wanted:.6f} reaches back further than this run" if decay < wanted else ""
        lines.append(f"average    decay {decay:.6f} per step{reason}")
    lines += [
        f"trains     {size(group.names) / 1e6:8.2f} M  x{group.multiplier:g}  {group.label}"
        for group in groups
    ]
    trained = sum(size(group.names) for group in groups)
    lines.append(
        f"frozen     {(sum(p.numel() for p in parameters.values()) - trained) / 1e6:8.2f} M  for the whole run"
    )
    copies = 4 if isinstance(knobs, DetectorTrainConfig) else 3
    lines.append(
        f"checkpoint about {copies * 4 * sum(p.numel() for p in parameters.values()) / 1e6:,.0f} MB each, two kept"
    )
    return "\n".join(lines)


def _engine_text(config: Config) -> str:
    device = first_device(config.cluster.use_gpu)
    choice = choose_engine(config.cluster.engine, device, config.cluster.num_workers)
    return f"{choice.name} ({choice.reason}), {choose_precision(config.cluster.precision, device)} on {device.type}"
