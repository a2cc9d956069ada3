"""Administration of agents: one, many, frozen."""
