"""Pseudo-label operator, threshold policies, curriculum, governor."""
