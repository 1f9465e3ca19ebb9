"""Encoder, masked autoencoder, adapters, pyramid, head, detector, baselines."""
