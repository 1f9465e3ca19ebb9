"""People's verdicts on detections, what follows for scores, and what to annotate next."""
