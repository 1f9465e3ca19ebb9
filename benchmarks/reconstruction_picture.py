"""Draws what a pretrained encoder makes of held-out chunks: docs/reconstruction.png.

python benchmarks/reconstruction_picture.py ENCODER PREPARED OUT.png
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np
import torch

from mast_ray.models.encoder import NUM_TOKENS, TOKEN_GRID, patches_of, spectrogram_of
from mast_ray.models.masking import Masking
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import load_autoencoder


def draw_reconstruction(encoder: str, prepared_folder: str, out: str) -> None:
    """Input, what was left of it, and what the autoencoder made of that, for three held-out chunks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, card = load_autoencoder(encoder)
    model = model.to(device).eval()
    normaliser = card.normaliser()
    prepared = with_background(open_prepared(prepared_folder), normaliser.background)
    reader = ChunkReader(prepared, chunks_of_split(prepared, "val"), batch_size=16)
    raw = next(reader.sequential()).to(device)
    logmel = normaliser(raw.values, raw.scale, raw.offset, raw.valid_frames, raw.background)[::5][:3]
    mask = Masking().draw(len(logmel), torch.Generator(device).manual_seed(0))
    with torch.no_grad():
        result = model(logmel, mask)
    hidden = mask.is_masked.reshape(-1, NUM_TOKENS, 1)
    patches = patches_of(logmel)
    predicted = result.prediction.float()
    if model.architecture.target == "patch_normalised":  # level and contrast are not predicted: the true ones
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        predicted = predicted * variance.sqrt() + mean
    shown = [logmel, spectrogram_of(torch.where(hidden, patches.min(), patches)),
             spectrogram_of(torch.where(hidden, predicted, patches), TOKEN_GRID)]  # fmt: skip
    figure, axes = plt.subplots(3, len(logmel), figsize=(5 * len(logmel), 6.5), sharex=True, sharey=True)
    for row, (title, pictures) in enumerate(
        zip(("input", "what is left", "reconstruction"), shown, strict=True)
    ):
        for column in range(len(logmel)):
            picture = pictures[column, 0].float().cpu().numpy().T
            low, high = np.quantile(logmel[column].cpu().numpy(), [0.02, 0.998])
            axes[row, column].imshow(
                picture, origin="lower", aspect="auto", vmin=low, vmax=high, extent=(0, 10.24, 0, 128)
            )
            axes[row, column].set_title(title)
    axes[2, 0].set_xlabel("seconds")
    axes[2, 0].set_ylabel("mel bin")
    figure.tight_layout()
    figure.savefig(out, dpi=70)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("encoder", "prepared", "out"):
        parser.add_argument(name)
    args = parser.parse_args()
    draw_reconstruction(args.encoder, args.prepared, args.out)
