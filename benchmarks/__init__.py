"""Benchmarks of speed and memory with real servers on this machine. Not part of the test suite.

Absolute figures depend on the machine and its other load. Each benchmark therefore also reports a ratio from the
same run, and processor time per request, which contention does not change.
"""
