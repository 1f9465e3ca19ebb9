"""Labelled synthetic archives: callers, backgrounds and recorders as formulas or from real clips."""
