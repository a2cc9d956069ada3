"""Logs, counters and error reporting."""
