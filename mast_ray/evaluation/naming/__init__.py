"""Names for boxes: fitted on embeddings, calibrated, and scored."""
