"""Labels of a prepared archive: matched to recordings, cleaned, chosen, written as tables."""
