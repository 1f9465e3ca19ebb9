"""From waveforms to log-mel chunks: grid, chunking, log-mel, normalisation, augmentation."""
