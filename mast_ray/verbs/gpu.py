"""Whether there is a GPU to use, and which model the word `shipped` means then."""

from __future__ import annotations

import argparse
import os


def has_gpu(args: argparse.Namespace) -> bool:
    """Whether the work of a verb uses GPUs: of this machine, or of the cluster that Ray joins, whose driver may have
    none. A cluster that was asked stays joined until the verb ends: the work joins it anyway.
    """
    use_gpu, runner = args.config.cluster.use_gpu, getattr(args, "runner", None)
    if use_gpu != "auto":
        return use_gpu == "yes"
    if runner is None or runner.name == "here" or "RAY_ADDRESS" not in os.environ:
        import torch

        return torch.cuda.is_available()
    args.held.enter_context(runner.session())
    return runner.resources().wants_gpus(use_gpu)


def folder_of_model(name: str, args: argparse.Namespace) -> str:
    """Where a model is: `shipped` and `shipped:NAME` are in the package, any other name is a folder."""
    from mast_ray.training.files.shipped import SHIPPED, model_folder

    return model_folder(name, has_gpu=name == SHIPPED and has_gpu(args))
