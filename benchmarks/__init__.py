"""Figures of speed and memory, taken from the real parts on this machine. Never part of the test suite.

Absolute figures depend on the machine and on what else it does; so each benchmark also gives a ratio that was
taken in the same run, and processor time per request, which waits for nobody.
"""
