"""Forwarding over HTTP/1.1: the exchange, the pool of idle connections, and the check of addresses."""
