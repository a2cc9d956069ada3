"""Upstreams over HTTP."""
