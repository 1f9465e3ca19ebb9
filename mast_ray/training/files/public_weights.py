"""AudioMAE's file as it is published, into a network of ours."""

from __future__ import annotations

import argparse
import io
import logging

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor, nn

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.models.audiomae import import_encoder, import_state, is_public_layout
from mast_ray.models.autoencoder import MaskedAutoencoder
from mast_ray.storage.storage import open_beside
from mast_ray.training.data.archive_inputs import refuse_other_divisor

log = logging.getLogger("mast.training")


def load_public(network: nn.Module, source: str, config: Config) -> None:
    """Give an autoencoder, or the encoder of a detector, AudioMAE's public weights (.pth, or safetensors)."""
    refuse_other_divisor(source, config)
    folder, name = open_beside(source, config.storage)
    state = _public_state(folder.read_bytes(name), source)
    if not is_public_layout(state):
        raise DataError(f"{source} does not have AudioMAE's names: give a model folder instead")
    if isinstance(network, MaskedAutoencoder):
        if config.model.decoder == "global":
            log.warning(
                "%s: its global decoder has other heads than ours and a class token: ours begins anew", source
            )
        elif config.pretrain.target != "patch_normalised":
            log.warning(
                "%s was trained to predict normalised patches and pretrain.target is %s: its decoder has to learn anew; "
                "--set pretrain.target=patch_normalised goes on as it was",
                source,
                config.pretrain.target,
            )
        import_state(network, state)
    else:
        import_encoder(network.encoder, state, config.model.size)


def _public_state(data: bytes, source: str) -> dict[str, Tensor]:
    """Tensors of AudioMAE's file as published (`.pth`: a pickle with "model" inside, read without running any of it)
    or as safetensors.
    """
    if source.endswith(".safetensors"):
        try:
            return tensors_from_bytes(data)
        except SafetensorError as error:
            raise DataError(f"{source} is damaged or cut short ({error}):\ncopy it again") from error
    try:
        # training scripts leave their settings beside the weights: a bag of values, nothing that runs
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a file that is not what it seems
        raise DataError(
            f"{source} is not a plain PyTorch checkpoint ({type(error).__name__}); code inside it is never run:\n"
            "give AudioMAE's pretraining file as published, or convert it to .safetensors"
        ) from error
    state = loaded.get("model", loaded) if isinstance(loaded, dict) else {}
    tensors = (
        {name: value for name, value in state.items() if isinstance(value, Tensor)}
        if isinstance(state, dict)
        else {}
    )
    if not tensors:
        raise DataError(
            f'{source} holds no weights under "model": give AudioMAE\'s pretraining checkpoint (pretrained.pth),\n'
            "not a fine-tuned one, an optimiser state or a whole pickled module"
        )
    return tensors
