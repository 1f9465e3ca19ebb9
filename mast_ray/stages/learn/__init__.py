"""`mast learn`: a detector and its names, adapted to what people corrected."""
