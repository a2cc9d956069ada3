"""Requests to nodes and what they answer, by web3.

It imports py_ecc, which raises Python's recursion limit to 100 000: far more than a thread's C stack holds, so that a
deeply nested JSON text from anywhere would kill the process instead of raising RecursionError.
"""

import sys

import web3  # noqa: F401 - imports it all, before the limit is restored

_PYTHONS_OWN_LIMIT = 1_000
sys.setrecursionlimit(_PYTHONS_OWN_LIMIT)
