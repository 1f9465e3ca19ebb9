"""Faster R-CNN and FCOS of torchvision on ResNet-FPN backbones of one input
channel, class-agnostic, from scratch.

Images are not resized: a chunk is 1024 x 128. Batch norms train, since there are no pretrained statistics to
freeze. What the library does image by image without need is done for all at once, with the same result: its
FCOS waited for the device some hundred times a step.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.image_list import ImageList
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from mast_ray.boxes.batch import ChunkBatch, Detections
from mast_ray.boxes.suppression import inside_sound, suppress_one
from mast_ray.models.baselines.convention import inference, object_xyxy, padded_detections, xyxy_of
from mast_ray.models.encoder import EncoderSize
from mast_ray.models.residual import residual_network

TorchvisionName = Literal["faster_rcnn", "fcos"]

ALL_CANDIDATES = 1_000_000  # more than either detector has in a chunk
_CHUNK = {"min_size": 128, "max_size": 1024, "image_mean": [0.0], "image_std": [1.0], "_skip_resize": True}
_PYRAMID_CHANNELS: dict[EncoderSize, int] = {
    "tiny": 64, "compact": 128, "small": 128, "base": 256, "large": 256, "huge": 256,
}  # fmt: skip


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


class _AsTheyAre(nn.Module):
    """In place of the library's resizing and normalising, which here changed nothing and
    took two copies to the device per image.
    """

    def forward(
        self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[ImageList, list[dict[str, Tensor]] | None]:
        return ImageList(torch.stack(images), [tuple(image.shape[-2:]) for image in images]), targets

    def postprocess(self, result: list[dict[str, Tensor]], *sizes: object) -> list[dict[str, Tensor]]:
        return result


def fcos_losses(network: FCOS, logmel: Tensor, targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The losses of `network(list(logmel), targets)`, with all images matched at once."""
    features = list(network.backbone(logmel).values())
    images = ImageList(logmel, [tuple(image.shape[-2:]) for image in logmel])
    anchors = network.anchor_generator(images, features)  # the same ones for every image
    per_level = [level.shape[-2] * level.shape[-1] for level in features]
    boxes = nn.utils.rnn.pad_sequence([target["boxes"] for target in targets], batch_first=True)
    counts = torch.tensor([len(target["boxes"]) for target in targets])
    is_box = (torch.arange(boxes.shape[1])[None] < counts[:, None]).to(logmel.device, non_blocking=True)
    matched = fcos_matches(anchors[0], per_level, boxes, is_box, network.center_sampling_radius)
    return network.head.compute_loss(targets, network.head(features), anchors, list(matched))


def fcos_matches(
    anchors: Tensor, per_level: list[int], boxes: Tensor, is_box: Tensor, radius: float
) -> Tensor:
    """(A, 4) anchors, (B, M, 4) xyxy boxes -> (B, A) index of the box that each anchor learns, -1: none.

    The rules of FCOS.compute_loss, which loops over images: near the centre, inside, and of the level's size.
    """
    if boxes.shape[1] == 0:
        return torch.full((len(boxes), len(anchors)), -1, device=anchors.device)
    points, sizes = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2] - anchors[:, 0]
    at, boxes = points[None, :, None], boxes[:, None]  # (1, A, 1, 2), (B, 1, M, 4)
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    is_near = (at - centres).abs().amax(-1) < radius * sizes[:, None]  # (B, A, M)
    distance = torch.cat((at - boxes[..., :2], boxes[..., 2:] - at), dim=-1)  # (B, A, M, 4)
    farthest, is_inside = distance.amax(-1), distance.amin(-1) > 0
    lower, upper = sizes * 4, sizes * 8
    lower[: per_level[0]] = 0
    upper[-per_level[-1] :] = float("inf")
    fits = (farthest > lower[:, None]) & (farthest < upper[:, None])
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    is_match = is_near & is_inside & fits & is_box[:, None]
    value, index = (is_match.float() * (1e8 - area)).max(dim=-1)  # the smallest box of several
    return torch.where(value < 1e-5, -1, index)


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
        self.network.transform = _AsTheyAre()

    def losses(self, batch: ChunkBatch) -> dict[str, Tensor]:
        """The library's own losses, and their sum as `loss`."""
        label = 1 if self.name == "faster_rcnn" else 0
        targets = [
            {"boxes": boxes, "labels": torch.full((len(boxes),), label, device=boxes.device)}
            for boxes in object_xyxy(batch.boxes)
        ]
        if isinstance(self.network, FCOS):
            terms = fcos_losses(self.network, batch.logmel, targets)
        else:
            terms = self.network(list(batch.logmel), targets)
        return {"loss": sum(terms.values()), **{name: term.detach() for name, term in terms.items()}}

    @torch.no_grad()
    def detect(
        self,
        logmel: Tensor,
        score_floor: float = 0.01,
        nms_overlap: float = 0.5,
        max_detections: int = 300,
        *,
        end_frames: Tensor | None = None,
    ) -> Detections:
        """The library's candidates, then its own kernel of suppression: what lies behind the sound's end goes first."""
        settings = self.network.roi_heads if isinstance(self.network, FasterRCNN) else self.network
        settings.score_thresh, settings.nms_thresh = score_floor, 1.0
        settings.detections_per_img = ALL_CANDIDATES
        with inference(self):
            found = self.network(list(logmel))
        most = max(1, *(len(f["boxes"]) for f in found))
        every = padded_detections([f["boxes"] for f in found], [f["scores"] for f in found], most)
        every = inside_sound(every, end_frames)
        kept = [
            _survivors(*chunk, nms_overlap)[:max_detections]
            for chunk in zip(every.corners, every.score, every.is_valid, strict=True)
        ]
        boxes = [xyxy_of(corners[rows]) for corners, rows in zip(every.corners, kept, strict=True)]
        scores = [score[rows] for score, rows in zip(every.score, kept, strict=True)]
        return padded_detections(boxes, scores, max_detections)


def _survivors(corners: Tensor, score: Tensor, is_valid: Tensor, nms_overlap: float) -> Tensor:
    """Rows of one chunk's (K, 4) boxes after suppression, best first."""
    rows = is_valid.nonzero().squeeze(1)
    return rows[suppress_one(corners[rows], score[rows], nms_overlap)]
