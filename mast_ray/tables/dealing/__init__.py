"""Who trains, who validates, who tests: splits and the leak audit."""
