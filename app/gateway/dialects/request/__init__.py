"""Requests of provider dialects: parameters that determine the cost, and changes to the body."""
