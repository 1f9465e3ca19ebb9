"""YOLO26 of ultralytics (AGPL, an optional extra) on images of one channel, with the library's own loss
and one-to-one head.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import ChunkBatch, Detections
from mast_ray.boxes.geometry import clip
from mast_ray.boxes.suppression import suppress
from mast_ray.config.errors import ConfigError
from mast_ray.models.baselines.convention import inference, object_xyxy, shares_of, xyxy_of
from mast_ray.models.encoder import EncoderSize

_SCALES: dict[EncoderSize, str] = {
    "tiny": "n", "compact": "s", "small": "s", "base": "x", "large": "x", "huge": "x",
}  # fmt: skip


class Yolo26Detector(nn.Module):
    """YOLO26-n, -s or -x for one class."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        if importlib.util.find_spec("ultralytics") is None:
            raise ConfigError(
                "model.name=yolo26 needs ultralytics, which is not installed (its licence is AGPL-3.0):\n"
                "pip install 'mast_ray[baselines]', or choose another model, e.g. --set model.name=fcos"
            )
        from ultralytics.nn.tasks import DetectionModel
        from ultralytics.utils import DEFAULT_CFG

        self.network = DetectionModel(f"yolo26{_SCALES[size]}.yaml", ch=1, nc=1, verbose=False)
        self.network.args = DEFAULT_CFG  # gains of the library's losses
        self.network.model[-1].end2end = True  # infer with the one-to-one head; both heads train
        for part in self.network.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = 0.1  # the library's 0.03 lags behind in runs of a few hundred steps

    def losses(self, batch: ChunkBatch) -> dict[str, Tensor]:
        """Weighted sum of the one-to-many and one-to-one losses, per chunk."""
        extent = (batch.logmel.shape[-2], batch.logmel.shape[-1])
        boxes = object_xyxy(batch.boxes)
        counts = torch.tensor([len(b) for b in boxes], device=batch.logmel.device)
        joined = torch.cat(boxes)
        target = {
            "batch_idx": torch.arange(len(boxes), device=counts.device).repeat_interleave(counts).float(),
            "cls": torch.zeros((len(joined), 1), device=joined.device),
            "bboxes": shares_of(joined, extent),
        }
        # The criterion is made for one device; a model that moved needs a new one.
        criterion = getattr(self.network, "criterion", None)
        if criterion is None or criterion.one2one.device != batch.logmel.device:
            self.network.criterion = self.network.init_criterion()
        total, terms = self.network.loss(target, self.network(batch.logmel))
        return {"loss": total.sum() / len(boxes), **{name: value.detach() for name, value in terms.items()}}

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
        """The one-to-one head's boxes, then the suppression every method gets."""
        with inference(self):
            found = self.network(logmel)[0].float()  # (B, 300, 6): xyxy, score, class
        corners = clip(xyxy_of(found[..., :4]), logmel.shape[-2], logmel.shape[-1])
        score = found[..., 4]
        found = Detections(corners, score, score >= score_floor)
        return suppress(found, nms_overlap, max_detections, end_frames=end_frames)
