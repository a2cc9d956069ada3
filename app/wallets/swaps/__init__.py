"""Token swaps."""
