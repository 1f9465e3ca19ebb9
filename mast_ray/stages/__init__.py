"""What a verb does, wherever it runs."""
