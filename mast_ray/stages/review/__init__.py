"""Review in the browser: what is shown, in which order, what is written down, and the server that does it."""
