"""When and where a recording was made: names, headers, tables."""
