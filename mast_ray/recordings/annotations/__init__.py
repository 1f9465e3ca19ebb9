"""Annotation formats: one module per format, one model, readers that find
recordings under a root, and writers.
"""

from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, AudioFacts, merge_annotations
from mast_ray.recordings.annotations.paths import RecordingIndex, list_files
from mast_ray.recordings.annotations.reading import (
    READ_FORMATS,
    parse_annotations,
    read_annotated_list,
    read_annotations,
)
from mast_ray.recordings.annotations.writing import WRITE_FORMATS, annotations_as_text, write_annotations

__all__ = [
    "READ_FORMATS",
    "WRITE_FORMATS",
    "Annotation",
    "AnnotationSet",
    "AudioFacts",
    "RecordingIndex",
    "annotations_as_text",
    "list_files",
    "merge_annotations",
    "parse_annotations",
    "read_annotated_list",
    "read_annotations",
    "write_annotations",
]
