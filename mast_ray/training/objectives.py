"""What is minimised: modules whose forward takes a ChunkBatch and returns {"loss":
scalar, component: scalar, ...}.

Everything goes through `forward`, so DDP and DeepSpeed can wrap an objective. Random draws come from a
generator that `seed_step` resets, so a resumed run draws what the undisturbed one would have. A step is in
two halves: `step_inputs` draws and gathers tensors, `step_losses` is arithmetic on them alone, which
`compile_step` compiles and an engine may record as a graph.
Legend: B chunks, M box slots, P points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mast_ray.boxes.assignment import AssignmentName, assign
from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes
from mast_ray.boxes.loudest_band import with_loudest_band
from mast_ray.losses.contrastive import (
    MAX_ANCHORS,
    ContrastiveNoise,
    contrastive_loss,
    contrastive_regions,
    draw_noise,
)
from mast_ray.losses.detection import ClassificationName, DetectionSums, detection_sums
from mast_ray.models.autoencoder import (
    AutoencoderArchitecture,
    DecoderName,
    MaskedAutoencoder,
    SideShape,
    TargetName,
)
from mast_ray.models.detector import HeadOutputs, PointDetector
from mast_ray.models.encoder import EncoderSize
from mast_ray.models.masking import Masking, TokenMask
from mast_ray.models.regions import ProjectionHead, pooled_regions
from mast_ray.training.engine import Objective


@dataclass(frozen=True)
class DetectionWeights:
    """Weights of the losses; 0 leaves a term out."""

    classification: float = 1.0
    corners: float = 0.25
    overlap: float = 2.0
    centerness: float = 1.0
    contrastive: float = 0.5


@dataclass(frozen=True)
class ContrastiveSettings:
    """Temperature and sample counts of the contrastive loss."""

    tau: float = 0.1
    num_positives: int = 4
    num_negatives: int = 32
    on_pseudo: bool = True  # whether pseudo-labelled chunks take part


FIXED_SLOTS = 256


class SharedCounts(NamedTuple):
    """Means over the micro-batches and workers of one step."""

    positives: Tensor
    anchors: Tensor


class SeededSteps:
    """A generator per device whose state depends on seed, worker and step alone."""

    def __init__(self, seed: int, rank: int = 0) -> None:
        self.seed, self.rank, self.step = seed, rank, 0
        self.rows: Tensor | None = None  # places of this worker's chunks in the global batch of num_rows
        self.num_rows = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def set_step(self, step: int, rows: Tensor | None = None, num_rows: int = 0) -> None:
        self.step, self.rows, self.num_rows = step, rows, num_rows
        for generator in self._generators.values():
            generator.manual_seed(self.value())

    def generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.value())
        return self._generators[device]

    def value(self) -> int:
        """Seed of the current step."""
        # An odd multiplier spreads neighbouring steps over all bits; 63 bits are what manual_seed takes.
        mixed = (
            self.seed * 0x9E3779B97F4A7C15 + self.rank * 0xC2B2AE3D27D4EB4F + self.step
        ) * 0xD6E8FEB86659FD93
        return mixed & (2**63 - 1)


class ReconstructionObjective(Objective):
    """Masked pretraining. In evaluation mode every chunk keeps one mask of its own, whatever the batch."""

    def __init__(self, autoencoder: MaskedAutoencoder, masking: Masking, seed: int = 0) -> None:
        super().__init__()
        self.autoencoder, self.masking, self.seed = autoencoder, masking, seed
        self._steps = SeededSteps(seed)
        self._reconstruct = self._reconstruction_losses

    def seed_step(self, step: int, rows: Tensor | None = None, num_rows: int = 0) -> None:
        self._steps.set_step(step, rows, num_rows)

    def compile_step(self, **options: Any) -> None:
        self._reconstruct = torch.compile(self._reconstruction_losses, **options)

    def run_eagerly(self) -> None:
        self._reconstruct = self._reconstruction_losses

    def forward(self, batch: ChunkBatch) -> dict[str, Tensor]:
        return self.step_losses(*self.step_inputs(batch))

    def step_inputs(self, batch: ChunkBatch) -> tuple[Tensor, ...]:
        """Spectrograms and masks."""
        device = batch.logmel.device
        if self.training:
            count, rows = self._steps.num_rows or len(batch.logmel), self._steps.rows
            mask = self.masking.draw(count, self._steps.generator(device))
            mask = mask if rows is None else TokenMask(*(part[rows] for part in mask))
        else:
            ids = batch.chunk_ids or tuple(str(index) for index in range(len(batch.logmel)))
            mask = self.masking.fixed(ids, self.seed, device)
        return batch.logmel, *mask

    def step_losses(self, logmel: Tensor, keep_index: Tensor, is_masked: Tensor) -> dict[str, Tensor]:
        """The losses of what `step_inputs` made: the error on masked patches, and that of the side path where there is one."""
        return self._reconstruct(logmel, keep_index, is_masked)

    def _reconstruction_losses(
        self, logmel: Tensor, keep_index: Tensor, is_masked: Tensor
    ) -> dict[str, Tensor]:
        result = self.autoencoder(logmel, TokenMask(keep_index, is_masked))
        if result.side_loss is None:
            return {"loss": result.loss, "masked_error": result.loss.detach()}
        return {
            "loss": result.loss + result.side_loss,
            "masked_error": result.loss.detach(),
            "side_error": result.side_loss.detach(),
        }


class DetectionObjective(Objective):
    """Detection losses weighted by chunk, plus the contrastive loss, over any detector with MAST's head."""

    is_mean_of_chunks = False  # sums over this worker's chunks, divided by means of counts over all workers

    def __init__(
        self,
        detector: PointDetector,
        weights: DetectionWeights = DetectionWeights(),  # noqa: B008 (frozen)
        contrastive: ContrastiveSettings = ContrastiveSettings(),  # noqa: B008 (frozen)
        assignment: AssignmentName = "atss",
        classification: ClassificationName = "quality_focal",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.detector, self.weights, self.contrastive = detector, weights, contrastive
        self.assignment, self.classification = assignment, classification
        self._steps = SeededSteps(seed)
        self._step = self._losses
        self._contrastive_term = self._contrastive
        self._shared: SharedCounts | None = None  # of a step in several micro-batches

    def begin_step(self, parts: Sequence[ChunkBatch]) -> None:
        """Count positives and anchors over all micro-batches of a step: each is divided by
        the same numbers, as in one batch.

        Neither depends on what is predicted. An empty list: every batch is a step of its own.
        """
        if not parts:
            self._shared = None
            return
        levels, most = self.detector.levels, MAX_ANCHORS
        positives = [
            (assign(with_loudest_band(part.boxes, part.logmel), levels, self.assignment).box_index >= 0).sum()
            for part in parts
        ]
        anchors = [
            (part.boxes.has_band.sum(1).clamp(max=most) * self._contrasts(part)).sum() for part in parts
        ]
        self._shared = SharedCounts(
            *(mean_over_workers(torch.stack(counts).float().mean()) for counts in (positives, anchors))
        )

    def _contrasts(self, batch: ChunkBatch) -> Tensor:
        """(B,) which chunks take part in the contrastive loss."""
        if self.contrastive.on_pseudo or batch.is_pseudo is None:
            return torch.ones_like(batch.weight, dtype=torch.bool)
        return ~batch.is_pseudo

    def seed_step(self, step: int, rows: Tensor | None = None, num_rows: int = 0) -> None:
        self._steps.set_step(step, rows, num_rows)

    def compile_step(self, contrastive: Literal["compiled", "eager"] = "compiled", **options: Any) -> None:
        """Compile the part of a step that runs on tensors; the contrastive loss may stay out of the graph."""
        if contrastive == "eager":
            self._contrastive_term = torch.compiler.disable(self._contrastive)
        self._step = torch.compile(self._losses, **options)

    def run_eagerly(self) -> None:
        self._step, self._contrastive_term = self._losses, self._contrastive

    def forward(self, batch: ChunkBatch) -> dict[str, Tensor]:
        return self.step_losses(*self.step_inputs(batch))

    def step_inputs(self, batch: ChunkBatch) -> tuple[Tensor, ...]:
        """Spectrograms, boxes, weights and noise."""
        num_chunks, num_slots = batch.boxes.is_object.shape
        settings = self.contrastive
        generator = self._steps.generator(batch.logmel.device)
        rows = self._steps.rows
        if rows is None:
            noise = draw_noise(num_chunks, num_slots, generator, settings.num_positives)
        else:  # drawn at a fixed width: the number of slots depends on which chunks a worker holds
            width = max(FIXED_SLOTS, num_slots)
            order, jitter = draw_noise(self._steps.num_rows, width, generator, settings.num_positives)
            num_anchors = min(num_slots, MAX_ANCHORS)
            noise = ContrastiveNoise(order[rows, :num_slots], jitter[rows, :num_anchors])
        boxes = batch.boxes
        # Tensors only: a compiled step must not be specialised to chunk ids.
        flags = (boxes.is_object, boxes.is_ignored)
        return batch.logmel, boxes.corners, *flags, batch.weight, self._contrasts(batch), *noise

    def step_losses(self, logmel: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
        """The losses of what `step_inputs` made."""
        sums, contrastive = self._step(logmel, *inputs)
        return self._weighted(sums, contrastive, len(logmel))

    def _losses(
        self,
        logmel: Tensor,
        corners: Tensor,
        is_object: Tensor,
        is_ignored: Tensor,
        chunk_weight: Tensor,
        contrasts: Tensor,
        order_noise: Tensor,
        jitter_noise: Tensor,
    ) -> tuple[DetectionSums, tuple[Tensor, Tensor] | None]:
        boxes = PaddedBoxes(corners, is_object, is_ignored)
        sought = with_loudest_band(boxes, logmel)
        outputs = self.detector(logmel)
        sums = detection_sums(
            outputs.score_logit,
            outputs.centerness_logit,
            outputs.distances,
            self.detector.points(logmel.device),
            sought,
            assign(sought, self.detector.levels, self.assignment),
            chunk_weight,
            self.classification,
        )
        projection = self.detector.projection
        if projection is None or self.weights.contrastive == 0:
            return sums, None
        noise = ContrastiveNoise(order_noise, jitter_noise)
        return sums, self._contrastive_term(outputs, boxes, noise, projection, contrasts)

    def _weighted(
        self, sums: DetectionSums, contrastive: tuple[Tensor, Tensor] | None, num_chunks: int
    ) -> dict[str, Tensor]:
        """Sums -> losses. Apart from the compiled step: Triton 3.6 fails on Hopper
        over a kernel that ends in this.
        """
        # At least one per chunk: in a batch of empty chunks the sum over all points would else be
        # divided by one.
        shared = self._shared
        positives = mean_over_workers(sums.num_positives.float()) if shared is None else shared.positives
        least = self._steps.num_rows / self.num_parts if self._steps.num_rows else num_chunks
        count = positives.clamp(min=float(least))
        terms = {
            "classification": sums.classification / count,
            "corners": sums.corners / count,
            "overlap": sums.overlap / count,
            "centerness": sums.centerness / count,
        }
        if contrastive is not None:
            # The mean over this worker's anchors, weighted so that the mean over workers (and micro-batches)
            # is the mean over all anchors.
            loss, num_anchors = contrastive[0], contrastive[1].float()
            anchors = mean_over_workers(num_anchors) if shared is None else shared.anchors
            terms["contrastive"] = loss * num_anchors / anchors.clamp(min=1e-6)
        elif self.detector.projection is not None:  # a parameter without a gradient would stall DDP
            terms["contrastive"] = 0.0 * sum(part.sum() for part in self.detector.projection.parameters())
        total = sum(getattr(self.weights, name) * term for name, term in terms.items())
        return {"loss": total, **{name: term.detach() for name, term in terms.items()}}

    def _contrastive(
        self,
        outputs: HeadOutputs,
        boxes: PaddedBoxes,
        noise: ContrastiveNoise,
        projection: ProjectionHead,
        contrasts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The contrastive loss of this worker's anchors, and how many there are."""
        settings, detector = self.contrastive, self.detector
        score = outputs.score_logit.detach().sigmoid() * outputs.centerness_logit.detach().sigmoid()
        candidates = detector.boxes(outputs.distances.detach())
        chosen = contrastive_regions(boxes, candidates, score, noise, detector.extent, settings.num_negatives)
        num_anchors = chosen.anchors.shape[1]
        regions = torch.cat([chosen.anchors, chosen.positives.flatten(1, 2), chosen.negatives], dim=1)
        pooled = pooled_regions(outputs.features, regions, detector.levels[0].stride)
        vectors = projection(pooled)  # (B, A + A J + N, 128)
        sizes = [num_anchors, num_anchors * settings.num_positives, settings.num_negatives]
        anchors, positives, negatives = vectors.split(sizes, dim=1)
        positives = positives.unflatten(1, (num_anchors, settings.num_positives))
        is_anchor = chosen.is_anchor & contrasts[:, None]
        loss = contrastive_loss(anchors, is_anchor, positives, negatives, chosen.is_negative, settings.tau)
        return loss, is_anchor.sum()


class BaselineObjective(Objective):
    """A detector of another family with its own losses."""

    may_skip_parameters = True  # a batch without boxes may leave a branch unused

    def __init__(self, detector: nn.Module, seed: int = 0, rank: int = 0) -> None:
        super().__init__()
        self.detector = detector
        self._steps = SeededSteps(seed, rank)

    def seed_step(self, step: int, rows: Tensor | None = None, num_rows: int = 0) -> None:
        """The libraries draw from the global generator."""
        self._steps.set_step(step)
        torch.manual_seed(self._steps.value())

    def forward(self, batch: ChunkBatch) -> dict[str, Tensor]:
        return self.detector.losses(batch)


def build_autoencoder(
    size: EncoderSize = "base",
    decoder: DecoderName = "global",
    target: TargetName = "raw",
    side: SideShape | None = None,
) -> MaskedAutoencoder:
    """A masked autoencoder with fresh weights."""
    return MaskedAutoencoder(AutoencoderArchitecture(size, decoder, target, side))


def detection_objective(
    detector: nn.Module,
    weights: DetectionWeights = DetectionWeights(),  # noqa: B008 (frozen)
    contrastive: ContrastiveSettings = ContrastiveSettings(),  # noqa: B008 (frozen)
    assignment: AssignmentName = "atss",
    classification: ClassificationName = "quality_focal",
    seed: int = 0,
    rank: int = 0,
) -> DetectionObjective | BaselineObjective:
    """The objective that fits a detector made by models.build.build_detector. `rank` matters only to baselines, which draw
    from the global generator: MAST draws for the whole batch and takes its rows, every rank alike.
    """
    if not isinstance(detector, PointDetector):
        return BaselineObjective(detector, seed, rank)
    return DetectionObjective(detector, weights, contrastive, assignment, classification, seed)


def mean_over_workers(value: Tensor) -> Tensor:
    """The mean of a scalar over all training processes, so that a step does not depend on how chunks
    were dealt out.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()
