"""From the reader to the objective: whose labels, which augmentation, on which device."""
