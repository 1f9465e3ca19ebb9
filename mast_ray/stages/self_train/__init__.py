"""`mast self-train` and `mast pseudo-label`."""
