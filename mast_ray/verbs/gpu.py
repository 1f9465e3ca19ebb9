"""Whether there is a GPU to use."""

from __future__ import annotations

from mast_ray.config.tree import Config


def has_gpu(config: Config) -> bool:
    """Whether a run with this config would use a GPU of this machine."""
    import torch

    return config.cluster.use_gpu != "no" and torch.cuda.is_available()
