"""Detectors of other families behind MAST's interface: `losses(batch)` and `detect(logmel, ...)`."""
