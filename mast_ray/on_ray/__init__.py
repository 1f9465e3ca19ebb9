"""Ray Data, Train and Tune wiring: the only room that imports ray."""
