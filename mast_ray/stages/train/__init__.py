"""`mast pretrain` and `mast train`."""
