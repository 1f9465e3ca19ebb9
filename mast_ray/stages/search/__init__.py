"""`mast tune`."""
