"""Recordings as users hold them: decoding, time and site, annotation formats, synthetic soundscapes."""
