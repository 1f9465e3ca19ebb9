"""`mast detect`."""
