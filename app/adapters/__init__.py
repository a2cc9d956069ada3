"""Implementations of the ports, by vendor or technique. Only `app.wiring` chooses among them."""
