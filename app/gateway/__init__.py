"""The paid proxy: one key for every upstream.

A call is checked, priced, paid for, forwarded and settled (`calls`, `metering`). What is particular to an upstream
stands in its row of the provider table and nowhere else. This room has no tables of its own.
"""
