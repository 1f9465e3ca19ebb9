"""Faster R-CNN and FCOS of torchvision on ResNet-FPN backbones of one input
channel, class-agnostic, from scratch.

Images are not resized: a chunk is 1024 x 128. Batch norms train, since there are no
pretrained statistics to freeze.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from mast_ray.boxes.batch import ChunkBatch, Detections
from mast_ray.models.baselines.convention import inference, object_xyxy, padded_detections
from mast_ray.models.encoder import EncoderSize
from mast_ray.models.residual import residual_network

TorchvisionName = Literal["faster_rcnn", "fcos"]

_CHUNK = {"min_size": 128, "max_size": 1024, "image_mean": [0.0], "image_std": [1.0], "_skip_resize": True}
_PYRAMID_CHANNELS: dict[EncoderSize, int] = {"tiny": 64, "compact": 128, "small": 128, "base": 256}


def residual_pyramid(size: EncoderSize, stages: tuple[int, ...], extra: nn.Module) -> BackboneWithFPN:
    """Feature pyramid over the named stages (1 to 4) of a ResNet."""
    network = residual_network(size)
    widths = [network.inplanes // 8 * 2 ** (stage - 1) for stage in stages]
    names = {f"layer{stage}": str(index) for index, stage in enumerate(stages)}
    return BackboneWithFPN(network, names, widths, _PYRAMID_CHANNELS[size], extra)


def faster_rcnn(size: EncoderSize) -> FasterRCNN:
    """Two-stage detector; anchors down to 8 x 8 and up to 8 times longer than high, as calls are."""
    backbone = residual_pyramid(size, (1, 2, 3, 4), LastLevelMaxPool())
    ratios = (0.5, 1.0, 2.0, 4.0, 8.0)  # rows / columns = time / frequency
    anchors = AnchorGenerator(tuple((8 * 2**level,) for level in range(5)), (ratios,) * 5)
    rois = 64 if size == "tiny" else 512
    return FasterRCNN(
        backbone, num_classes=2, rpn_anchor_generator=anchors, box_batch_size_per_image=rois, **_CHUNK
    )


def fcos(size: EncoderSize) -> FCOS:
    """One-stage anchor-free detector on strides 8 to 128."""
    channels = _PYRAMID_CHANNELS[size]
    backbone = residual_pyramid(size, (2, 3, 4), LastLevelP6P7(channels, channels))
    return FCOS(backbone, num_classes=1, **_CHUNK)


class TorchvisionDetector(nn.Module):
    """Either detector behind MAST's interface."""

    def __init__(self, name: TorchvisionName, size: EncoderSize) -> None:
        super().__init__()
        self.name = name
        match name:
            case "faster_rcnn":
                self.network: FasterRCNN | FCOS = faster_rcnn(size)
            case "fcos":
                self.network = fcos(size)

    def losses(self, batch: ChunkBatch) -> dict[str, Tensor]:
        """The library's own losses, and their sum as `loss`."""
        label = 1 if self.name == "faster_rcnn" else 0
        targets = [
            {"boxes": boxes, "labels": torch.full((len(boxes),), label, device=boxes.device)}
            for boxes in object_xyxy(batch.boxes)
        ]
        terms = self.network(list(batch.logmel), targets)
        return {"loss": sum(terms.values()), **{name: term.detach() for name, term in terms.items()}}

    @torch.no_grad()
    def detect(
        self, logmel: Tensor, score_floor: float = 0.01, nms_overlap: float = 0.5, max_detections: int = 300
    ) -> Detections:
        """Detections after the library's own suppression."""
        settings = self.network.roi_heads if isinstance(self.network, FasterRCNN) else self.network
        settings.score_thresh, settings.nms_thresh = score_floor, nms_overlap
        settings.detections_per_img = max_detections
        with inference(self):
            found = self.network(list(logmel))
        return padded_detections([f["boxes"] for f in found], [f["scores"] for f in found], max_detections)
