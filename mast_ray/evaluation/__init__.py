"""Matching, metrics, intervals, retrieval, annotation planner, studies."""
