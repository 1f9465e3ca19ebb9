"""What `mast self-train` would do, stage by stage, and what of it is done: read from the
folders, without starting anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mast_ray.config.stage_knobs import DetectorTrainConfig, SelfTrainConfig, lengthened
from mast_ray.config.tree import Config
from mast_ray.evaluation.split_truth import scored_splits
from mast_ray.self_training.curriculum import needs_pseudo_labels, steps_of
from mast_ray.stages.self_train.settings import experts_of, refuse_missing_experts
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split, drawn_runs, runs_of_split
from mast_ray.training.data.archive_inputs import of_student
from mast_ray.training.data.mixed_reader import expert_count
from mast_ray.training.files.model_files import read_card
from mast_ray.training.schedule import schedule_of


def plan_text(config: Config, prepared: str, detector: str, out: str, also: Sequence[str] = ()) -> str:
    """Lines for people."""
    archive = open_prepared(prepared, config.storage)
    card = read_card(detector, config.storage)
    config, stage = of_student(config, card, detector), open_storage(out, config.storage)
    knobs, splits = config.self_train, scored_splits(archive)
    refuse_missing_experts(config, archive)
    own = experts_of(config, archive)
    pool, experts = len(chunks_of_split(archive, "pool")), 0 if own is None else len(own)
    held = len(chunks_of_split(archive, *splits)) if splits else 0
    most = min(pool, knobs.max_chunks or pool)
    labelled = len(drawn_runs(runs_of_split(archive, "pool"), knobs.most_labelled, config.seed))
    lines = [
        f"model      {card.model.get('name')} {card.model.get('size')}, {card.weights_sha256[:12]}",
        f"data       {pool} chunks of the pool, {experts} with expert labels, {held} held out ({', '.join(splits) or 'none'})",
        f"policy     {knobs.policy}, q {knobs.threshold:g} where it has no other; curriculum {knobs.curriculum}; governor {knobs.governor}",
        _line(stage, "round0/evaluation", f"{held} chunks"),
    ]
    for number in range(1, knobs.rounds + 1):
        if needs_pseudo_labels(knobs.curriculum):
            teachers = 1 + len(also) * (number == 1)
            heard = f"by {teachers} detectors" if teachers > 1 else "by one detector"
            ways = f", each in {knobs.teacher_hearings} ways" if knobs.teacher_hearings > 1 else ""
            lines.append(_line(stage, f"round{number}/detections", f"{labelled} chunks {heard}{ways}"))
            lines.append(_line(stage, f"round{number}/pseudo", "no inference"))
        for step in steps_of(knobs.curriculum):
            section = knobs.stage1 if step.section == "self_train.stage1" else knobs.stage2
            mixed = math.ceil(most * section.batch_size / (section.batch_size - experts_in(section, knobs)))
            count = {"expert": experts, "pseudo": most, "both": most + experts}.get(step.labels, mixed)
            bound = "" if step.labels == "expert" else "at most "
            schedule = schedule_of(lengthened(section, count), count)
            lines.append(
                _line(
                    stage,
                    f"round{number}/{step.name}",
                    f"{bound}{schedule.num_steps} steps on {step.labels} labels",
                )
            )
        lines.append(_line(stage, f"round{number}/evaluation", f"{held} chunks"))
    return "\n".join(lines)


def experts_in(section: DetectorTrainConfig, knobs: SelfTrainConfig) -> int:
    """Expert chunks in a mixed batch."""
    return expert_count(section.batch_size, knobs.expert_share)


def _line(stage: Storage, name: str, what: str) -> str:
    folder = stage.at(name)
    begun = next(iter(folder.list()), None) is not None
    state = "done" if read_manifest(folder) is not None else "begun" if begun else "to do"
    return f"{name:<20} {state:<6} {what}"
