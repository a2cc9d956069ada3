"""The steps of a purchase."""
