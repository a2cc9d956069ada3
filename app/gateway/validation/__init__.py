"""Checks of a request before it is forwarded: route patterns, body, parameters and fields."""
