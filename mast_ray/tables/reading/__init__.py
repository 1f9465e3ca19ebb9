"""Chunks of a prepared archive, chosen, ordered and read at the speed of a GPU."""
