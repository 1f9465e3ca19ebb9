"""What stages hand to each other: schemas, prepared archives, how they are made, dealt out and read."""
