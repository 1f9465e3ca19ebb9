"""Detections for the tools of ecologists, and tasks for annotators."""
