"""`mast compare` and `mast label-budget`."""
