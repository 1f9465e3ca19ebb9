"""Boxes as tensors: batches, geometry, points, assignment, suppression, stitching."""
