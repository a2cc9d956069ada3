"""Untrusted OpenAPI documents, each read in its own process with a time limit.

`reader` is our side; `child` is the process: it has no secrets, and can open neither files nor sockets.
"""
