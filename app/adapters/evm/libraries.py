"""web3 and eth-account, imported in this one place, which undoes what they do to the whole process.

They import py_ecc, which raises Python's recursion limit to 100 000: far more than a thread's C stack holds, so
that a deeply nested JSON text from anywhere would end the process instead of raising RecursionError.
"""

from __future__ import annotations

import sys

from eth_account.typed_transactions.typed_transaction import TypedTransaction
from web3.providers.base import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

_PYTHONS_OWN_LIMIT = 1_000
sys.setrecursionlimit(_PYTHONS_OWN_LIMIT)

__all__ = ["JSONBaseProvider", "RPCEndpoint", "RPCResponse", "TypedTransaction"]
