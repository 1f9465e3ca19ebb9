"""One module per annotation format: `parse` where it is read, `write` where it is written."""
