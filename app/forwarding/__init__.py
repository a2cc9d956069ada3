"""Relay of one HTTP request to an upstream, and of its response to the client."""
