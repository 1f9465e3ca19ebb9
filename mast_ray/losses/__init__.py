"""Detection and contrastive losses, batched over chunks."""
