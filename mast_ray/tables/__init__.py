"""What stages hand to each other: storage, schemas, work units, splits, readers, stage folders."""
