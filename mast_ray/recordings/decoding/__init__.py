"""Sound files of any kind to samples, checked before they are trusted."""
