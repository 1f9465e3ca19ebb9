"""Whether there is a GPU to use, and which model the word `shipped` means then."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

log = logging.getLogger(__name__)


def has_gpu(args: argparse.Namespace) -> bool:
    """Whether the work of a verb uses GPUs: of this machine, or of the cluster that Ray joins, whose driver may have
    none. A cluster that was asked stays joined until the verb ends: the work joins it anyway.
    """
    use_gpu = args.config.cluster.use_gpu
    runner: Any = getattr(args, "runner", None)
    is_here = runner is None or runner.name == "here"
    if use_gpu == "no" or (use_gpu == "yes" and not is_here):
        return use_gpu == "yes"
    if is_here or "RAY_ADDRESS" not in os.environ:
        import torch

        if use_gpu == "yes" and not torch.cuda.is_available():
            log.warning(
                "cluster.use_gpu=yes, but this machine has no GPU: the settings are for one, the work runs on its CPU"
            )
        return use_gpu == "yes" or torch.cuda.is_available()
    args.held.enter_context(runner.session())
    return runner.resources().wants_gpus(use_gpu)


def folder_of_model(name: str, args: argparse.Namespace) -> str:
    """Where a model is: `shipped` and `shipped:NAME` are in the package, any other name is a folder."""
    from mast_ray.training.files.shipped import SHIPPED, model_folder

    return model_folder(name, has_gpu=name == SHIPPED and has_gpu(args))
