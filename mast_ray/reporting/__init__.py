"""Figures, the HTML report, summary tables and annotation exports."""
