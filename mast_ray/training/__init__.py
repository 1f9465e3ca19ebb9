"""The one training loop, its engines, objectives, checkpoints and model files."""
