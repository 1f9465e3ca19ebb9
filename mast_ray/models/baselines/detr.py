"""DETR of transformers on a ResNet of one input channel, built from a local
configuration: nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

from mast_ray.boxes.batch import ChunkBatch, Detections
from mast_ray.boxes.geometry import clip
from mast_ray.boxes.suppression import suppress
from mast_ray.models.baselines.convention import corners_of_shares, inference, object_xyxy, shares_of
from mast_ray.models.encoder import EncoderSize


@dataclass(frozen=True)
class DetrShape:
    """Widths and depths of backbone and transformer."""

    stages: tuple[int, ...]
    depths: tuple[int, ...]
    block: str
    width: int
    num_layers: int
    num_queries: int


DETR_SHAPES: dict[EncoderSize, DetrShape] = {
    "tiny": DetrShape((16, 32, 64, 128), (1, 1, 1, 1), "basic", 96, 2, 20),
    "compact": DetrShape((64, 128, 256, 512), (2, 2, 2, 2), "basic", 128, 4, 100),
    "small": DetrShape((64, 128, 256, 512), (2, 2, 2, 2), "basic", 128, 4, 100),
    "base": DetrShape((256, 512, 1024, 2048), (3, 4, 6, 3), "bottleneck", 256, 6, 100),
    "large": DetrShape((256, 512, 1024, 2048), (3, 4, 23, 3), "bottleneck", 256, 6, 100),
    "huge": DetrShape((256, 512, 1024, 2048), (3, 4, 23, 3), "bottleneck", 256, 6, 100),
}


def start_from_scratch(network: DetrForObjectDetection) -> None:
    """DETR's published initialisation (Xavier weights, unit queries), with batch norms that train.

    The library freezes the norms and draws everything with deviation 0.02, as fits weights about to be
    loaded. From scratch that leaves queries all but equal. The decoder starts from zeros, so with zero
    biases the first layer norm divides by its epsilon and two bias gradients of 700 drown all others in
    the clipping: one bias is drawn instead.
    """
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ == "DetrFrozenBatchNorm2d":
                setattr(parent, name, nn.BatchNorm2d(len(child.weight)))
            elif isinstance(child, nn.Linear):
                nn.init.xavier_uniform_(child.weight)
    nn.init.xavier_uniform_(network.model.input_projection.weight)
    nn.init.normal_(network.model.query_position_embeddings.weight)
    nn.init.normal_(network.model.decoder.layers[0].self_attn.o_proj.bias)


class DetrDetector(nn.Module):
    """Set prediction with bipartite matching; one class beside "no object"."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        shape = DETR_SHAPES[size]
        backbone = ResNetConfig(
            num_channels=1,
            embedding_size=min(64, shape.stages[0]),
            hidden_sizes=list(shape.stages),
            depths=list(shape.depths),
            layer_type=shape.block,
            out_features=["stage4"],
        )
        config = DetrConfig(
            backbone_config=backbone,
            num_channels=1,
            num_labels=1,
            d_model=shape.width,
            encoder_layers=shape.num_layers,
            decoder_layers=shape.num_layers,
            encoder_ffn_dim=8 * shape.width,
            decoder_ffn_dim=8 * shape.width,
            num_queries=shape.num_queries,
            auxiliary_loss=True,
            dropout=0.0 if size == "tiny" else 0.1,
        )
        self.network = DetrForObjectDetection(config)
        start_from_scratch(self.network)

    def losses(self, batch: ChunkBatch) -> dict[str, Tensor]:
        """Classification, L1 and GIoU over matched queries, summed over decoder layers."""
        extent = (batch.logmel.shape[-2], batch.logmel.shape[-1])
        labels = [
            {
                "class_labels": torch.zeros(len(boxes), dtype=torch.long, device=boxes.device),
                "boxes": shares_of(boxes, extent),
            }
            for boxes in object_xyxy(batch.boxes)
        ]
        outputs = self.network(batch.logmel, labels=labels)
        names = ("loss_ce", "loss_bbox", "loss_giou")
        return {"loss": outputs.loss, **{name: outputs.loss_dict[name].detach() for name in names}}

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
        """One box per query, then the suppression every method gets."""
        with inference(self):
            outputs = self.network(logmel)
        score = outputs.logits.float().softmax(-1)[..., 0]  # (B, queries)
        extent = (logmel.shape[-2], logmel.shape[-1])
        corners = clip(corners_of_shares(outputs.pred_boxes.float(), extent), *extent)
        found = Detections(corners, score, score >= score_floor)
        return suppress(found, nms_overlap, max_detections, end_frames=end_frames)
