"""Several runs and what they say together: the search for an engine's limit, and sweeps over a setting."""
