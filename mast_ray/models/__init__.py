"""Encoder, masked autoencoder, adapters, pyramid, head, detector, baselines."""

from mast_ray.models.light_start import import_lightly

import_lightly("torchvision", "timm")
