"""The owner's pages: claim, overview, limits, keys."""
