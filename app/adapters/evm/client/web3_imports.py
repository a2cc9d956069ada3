"""The only import of web3 and eth-account, which reverts their change of the whole process.

They import py_ecc, which raises Python's recursion limit to 100 000: far more than a thread's C stack holds, so that
a deeply nested JSON text from anywhere would kill the process instead of raising RecursionError.
"""

from __future__ import annotations

import sys

from eth_account import Account
from eth_account.messages import SignableMessage, encode_defunct, encode_typed_data
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from web3 import JSONBaseProvider, Web3
from web3.exceptions import Web3Exception
from web3.types import RPCEndpoint, RPCResponse, StateOverride, TxParams, Wei

_PYTHONS_OWN_LIMIT = 1_000
sys.setrecursionlimit(_PYTHONS_OWN_LIMIT)

__all__ = [
    "Account",
    "JSONBaseProvider",
    "RPCEndpoint",
    "RPCResponse",
    "SignableMessage",
    "StateOverride",
    "TxParams",
    "TypedTransaction",
    "Web3",
    "Web3Exception",
    "Wei",
    "encode_defunct",
    "encode_typed_data",
]
