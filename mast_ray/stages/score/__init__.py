"""Figures of models and detections."""
