"""Every knob, recipes, loading, errors and exit codes. Imports without torch."""
