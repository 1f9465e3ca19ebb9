"""mast_ray: detectors of animal sounds in time and frequency, from few boxes and much unlabelled sound."""

__version__ = "0.1.0"
