"""Look-ups of operators across agents."""
