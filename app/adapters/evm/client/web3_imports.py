"""The only import of eth-account, which reverts its change of the whole process.

It imports py_ecc, which raises Python's recursion limit to 100 000: far more than a thread's C stack holds, so that
a deeply nested JSON text from anywhere would kill the process instead of raising RecursionError.
"""

from __future__ import annotations

import sys

from eth_account import Account
from eth_account.messages import SignableMessage, encode_defunct, encode_typed_data

_PYTHONS_OWN_LIMIT = 1_000
sys.setrecursionlimit(_PYTHONS_OWN_LIMIT)

__all__ = ["Account", "SignableMessage", "encode_defunct", "encode_typed_data"]
