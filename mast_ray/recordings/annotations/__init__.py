"""Annotation formats: one module per format, one model, readers that find recordings under a root, and writers."""
