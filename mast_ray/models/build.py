"""Any detector by name, with fresh weights: MAST, its variants without adapter, and the baselines."""

from __future__ import annotations

from torch import nn

from mast_ray.models.detector import DetectorArchitecture, MastDetector, ResNetDetector


def build_detector(architecture: DetectorArchitecture) -> nn.Module:
    """A module with `detect`; those that learn and are not a PointDetector also have `losses(batch)`."""
    # Baselines are imported where they are built: transformers takes seconds and ultralytics is optional.
    match architecture.name:
        case "mast" | "audiomae" | "vit_scratch":
            return MastDetector(architecture)
        case "resnet_fpn":
            return ResNetDetector(architecture)
        case "faster_rcnn" | "fcos":
            from mast_ray.models.baselines.torchvision_detectors import TorchvisionDetector

            return TorchvisionDetector(architecture.name, architecture.size)
        case "detr":
            from mast_ray.models.baselines.detr import DetrDetector

            return DetrDetector(architecture.size)
        case "energy":
            from mast_ray.models.baselines.energy import EnergyDetector

            return EnergyDetector()
        case "pieces":
            from mast_ray.models.baselines.pieces import PiecesDetector

            return PiecesDetector()
        case "yolo26":
            from mast_ray.models.baselines.yolo26 import Yolo26Detector

            return Yolo26Detector(architecture.size)
