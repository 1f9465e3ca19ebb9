"""What a training keeps on disk: checkpoints, model folders, metrics."""
