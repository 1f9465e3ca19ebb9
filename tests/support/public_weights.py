"""Weights as AudioMAE publishes them."""

from torch import Tensor

from mast_ray.models.audiomae import SIDE, public_name
from mast_ray.models.autoencoder import MaskedAutoencoder


def export_state(autoencoder: MaskedAutoencoder) -> dict[str, Tensor]:
    """The autoencoder's weights under AudioMAE's names; a side path has none there."""
    return {
        public_name(name): tensor.detach().clone()
        for name, tensor in autoencoder.state_dict().items()
        if not name.startswith(SIDE)
    }
