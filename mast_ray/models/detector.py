"""Detectors on a pyramid of points: MAST (encoder, adapter, pyramid, head) and its rival ResNet-FPN (another
backbone, the rest alike); `detect` ends in suppressed boxes without leaving the device.

Legend: B chunks, P points over all levels, K detection slots, R boxes per chunk, T frames, F bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.geometry import clip
from mast_ray.boxes.points import (
    FINEST_STRIDES,
    FinestLevel,
    PyramidLevel,
    PyramidPoints,
    boxes_of_distances,
    levels_from,
    pyramid_levels,
    pyramid_points,
)
from mast_ray.boxes.suppression import suppress
from mast_ray.config.errors import ConfigError
from mast_ray.models.adapters import AdapterName, HybridAdapter, adapter_stride, build_adapter
from mast_ray.models.encoder import PATCH, EncoderSize, build_encoder
from mast_ray.models.head import FcosHead
from mast_ray.models.pyramid import Pyramid, StagePyramid
from mast_ray.models.regions import ProjectionHead, pooled_regions
from mast_ray.models.residual import ResidualStages

DetectorName = Literal[
    "mast", "resnet_fpn", "fcos", "faster_rcnn", "detr", "yolo26", "audiomae", "vit_scratch", "energy", "pieces",
]  # fmt: skip
EmbeddingName = Literal["encoder", "neck", "projection"]

_CHANNELS: dict[EncoderSize, int] = {
    "tiny": 48, "compact": 96, "small": 128, "base": 256, "large": 256, "huge": 256,
}  # fmt: skip
_TOWER_DEPTH: dict[EncoderSize, int] = {
    "tiny": 2, "compact": 3, "small": 4, "base": 4, "large": 4, "huge": 4,
}  # fmt: skip
# Suppression needs one step per link in a chain of boxes that beat each other in turn; chains this long
# were never seen.
SUPPRESSION_STEPS = 32
NUM_CANDIDATES = 512  # points of the best scores that suppression sees


@dataclass(frozen=True)
class DetectorArchitecture:
    """Everything needed to rebuild a detector or baseline; goes into the model card.

    `audiomae` and `vit_scratch` are this network without adapter (a 1 x 1 projection at stride 16 x 16) and
    without projection head: the first starts from AudioMAE's public weights, the second from nothing.
    `resnet_fpn` has a ResNet in place of encoder and adapter. Baselines of other families read only `size`.
    `num_levels` counts from 8x4; a finer `finest` adds levels below.
    """

    name: DetectorName = "mast"
    size: EncoderSize = "base"
    adapter: AdapterName = "upsampling"
    num_levels: int = 4
    finest: FinestLevel = "8x4"

    @property
    def channels(self) -> int:
        return _CHANNELS[self.size]

    @property
    def used_adapter(self) -> AdapterName:
        return self.adapter if self.name == "mast" else "none"

    @property
    def levels(self) -> tuple[PyramidLevel, ...]:
        if self.name == "resnet_fpn":
            return pyramid_levels(levels_from(self.finest, self.num_levels), FINEST_STRIDES[self.finest])
        chooses = self.used_adapter in ("upsampling", "hybrid")
        count = levels_from(self.finest, self.num_levels) if chooses else self.num_levels
        return pyramid_levels(count, adapter_stride(self.used_adapter, self.finest))


class HeadOutputs(NamedTuple):
    """What the head says about every point, and the finest map for region features."""

    score_logit: Tensor  # (B, P)
    centerness_logit: Tensor  # (B, P)
    distances: Tensor  # (B, P, 4) in strides
    features: Tensor  # (B, C, time, frequency) of the finest level


@lru_cache(maxsize=16)
def points_on(levels: tuple[PyramidLevel, ...], device: torch.device) -> PyramidPoints:
    """Points of a pyramid, made once per device. Not a buffer: a model cast to
    bf16 must keep exact positions.
    """
    return pyramid_points(levels, device)


class PointDetector(nn.Module):
    """What all detectors with our head share; a subclass makes the maps.

    Parameters are named by their part: the backbone's, pyramid, head, projection.
    """

    projection: ProjectionHead | None

    def __init__(self, architecture: DetectorArchitecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.levels = architecture.levels

    def maps(self, logmel: Tensor) -> list[Tensor]:
        """(B, 1, T, F) -> one map (B, C, time, frequency) per level, finest first"""
        raise NotImplementedError

    def backbone_map(self, logmel: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The backbone's last map and its stride."""
        raise NotImplementedError

    def forward(self, logmel: Tensor) -> HeadOutputs:
        """(B, 1, T, F) normalised spectrograms -> outputs of every point"""
        maps = self.maps(logmel)
        score_logit, centerness_logit, distances = self.head(maps)
        return HeadOutputs(score_logit, centerness_logit, distances, maps[0])

    def points(self, device: torch.device) -> PyramidPoints:
        """Points of all levels on a device."""
        # a few fused operations in the graph; a cache would only be traced through
        if torch.compiler.is_compiling():
            return pyramid_points(self.levels, device)
        return points_on(self.levels, device)

    def boxes(self, distances: Tensor) -> Tensor:
        """(B, P, 4) distances -> (B, P, 4) boxes in frames and bins, clipped to the chunk"""
        points = self.points(distances.device)
        return clip(boxes_of_distances(distances, points.centres, points.strides), *self.extent)

    @property
    def extent(self) -> tuple[int, int]:
        """Frames and bins of a chunk."""
        stride, size = self.levels[0]
        return stride[0] * size[0], stride[1] * size[1]

    def detect(
        self,
        logmel: Tensor,
        score_floor: float = 0.01,
        nms_overlap: float = 0.5,
        max_detections: int = 300,
        with_parts: bool = False,
        end_frames: Tensor | None = None,
    ) -> Detections:
        """Forward, score = sqrt(cls * centerness), decode, suppress: one call that compiles and reads
        nothing back. `with_parts` keeps cls and centerness, so that they can be weighed otherwise later;
        `end_frames` (B,) says where a chunk's sound ends.
        """
        outputs = self(logmel)
        classification, centerness = outputs.score_logit.sigmoid(), outputs.centerness_logit.sigmoid()
        score = (classification * centerness).sqrt()  # (B, P)
        count = min(max(NUM_CANDIDATES, max_detections), score.shape[1])
        best, index = score.topk(count, dim=1)  # (B, candidates)
        points = self.points(score.device)
        distances = outputs.distances.gather(1, index[..., None].expand(-1, -1, 4))
        corners = clip(
            boxes_of_distances(distances, points.centres[index], points.strides[index]), *self.extent
        )
        parts = (
            torch.stack((classification.gather(1, index), centerness.gather(1, index)), dim=-1)
            if with_parts
            else None
        )
        on_host = score.device.type == "cpu" and not torch.compiler.is_compiling()
        return suppress(
            Detections(corners, best, best >= score_floor, parts),
            nms_overlap,
            max_detections,
            num_steps=None if on_host else SUPPRESSION_STEPS,
            end_frames=end_frames,
        )

    def embed_boxes(self, logmel: Tensor, boxes: Tensor, name: EmbeddingName = "projection") -> Tensor:
        """(B, R, 4) boxes -> (B, R, D): pooled map of the backbone, pooled finest pyramid map,
        or its unit-length projection
        """
        if name == "encoder":
            features, stride = self.backbone_map(logmel)
            return pooled_regions(features, boxes, stride).float()
        regions = pooled_regions(self.maps(logmel)[0], boxes, self.levels[0].stride)
        if name == "neck":
            return regions.float()
        if self.projection is None:
            raise ConfigError(
                f"model.name={self.architecture.name} has no projection head: use embeddings of the encoder or neck, "
                "e.g. --set detect.embeddings=neck"
            )
        return self.projection(regions)


class MastDetector(PointDetector):
    """Parameters are named by their part: encoder, adapter, pyramid, head, projection."""

    def __init__(self, architecture: DetectorArchitecture) -> None:
        super().__init__(architecture)
        channels, name = architecture.channels, architecture.used_adapter
        self.encoder = build_encoder(architecture.size)
        self.adapter = build_adapter(
            name, self.encoder.shape.width, channels, architecture.finest, len(self.levels)
        )
        self.pyramid = Pyramid(channels, len(self.levels))
        self.head = FcosHead(channels, len(self.levels), _TOWER_DEPTH[architecture.size])
        self.projection = ProjectionHead(channels) if architecture.name == "mast" else None
        for part in (self.adapter, self.pyramid, self.head):
            part.to(memory_format=torch.channels_last)

    def maps(self, logmel: Tensor) -> list[Tensor]:
        tokens = self.backbone_map(logmel)[0]
        if not isinstance(self.adapter, HybridAdapter):
            return self.pyramid(self.adapter(tokens))
        finest, *above = self.adapter(tokens, logmel)
        return self.pyramid(finest, above)

    def backbone_map(self, logmel: Tensor) -> tuple[Tensor, tuple[int, int]]:
        return self.encoder(logmel).contiguous(memory_format=torch.channels_last), (PATCH, PATCH)


class ResNetDetector(PointDetector):
    """ResNet stages under MAST's pyramid, head and losses: the rival that differs in the backbone alone."""

    def __init__(self, architecture: DetectorArchitecture) -> None:
        super().__init__(architecture)
        channels = architecture.channels
        self.stages = ResidualStages(architecture.size, architecture.finest)
        self.pyramid = StagePyramid(self.stages.widths, channels, len(self.levels))
        self.head = FcosHead(channels, len(self.levels), _TOWER_DEPTH[architecture.size])
        self.projection: ProjectionHead | None = ProjectionHead(channels)
        self.to(memory_format=torch.channels_last)

    def maps(self, logmel: Tensor) -> list[Tensor]:
        return self.pyramid(self.stages(logmel))

    def backbone_map(self, logmel: Tensor) -> tuple[Tensor, tuple[int, int]]:
        last = self.stages(logmel)[-1]
        return last, self.levels[len(self.stages.widths) - 1].stride
