"""Forwarding over HTTP/1.1: the exchange, the pool of idle connections, and which addresses may be reached."""
