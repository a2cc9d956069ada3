"""Signatures of wallets that are contracts: EIP-1271, and ERC-6492 for wallets that are not deployed yet. No I/O.

Only the chain can verify them. ERC-6492 wraps a signature with the call that deploys its wallet; a factory can run
any code, so only known ones are called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.adapters.evm.contracts.abi import Function
from app.adapters.jsonrpc.replies import MalformedResponseError
from app.ports.errors import Rejected

FACTORIES = frozenset(
    {
        "0x0BA5ED0c6AA8c49038F819E587E2633c4A9F428a",  # Coinbase Smart Wallet 1
        "0xBA5ED110eFDBa3D005bfC882d75358ACBbB85842",  # Coinbase Smart Wallet 1.1
        "0xa6B71E26C5e0845f74c812102Ca7114b6a896AB2",  # Safe 1.3.0
        "0x4e1DCf7AD4e460CfD30791CCC4F9c8a4f820ec67",  # Safe 1.4.1
    }
)
"""Those of Coinbase Smart Wallet and Safe, at the same address on every chain."""
FORM = re.compile(r"0x(?:[0-9a-fA-F]{2}){1,3072}", re.ASCII)
"""A passkey's signature of a wallet that is not deployed takes about 1 500 bytes."""
_MAGIC = bytes.fromhex("6492" * 16)
# The selector makes the wrapping readable as a call; it is none.
_WRAPPING = Function("wrapped(address,bytes,bytes)")


@dataclass(frozen=True, slots=True)
class WalletDeployment:
    """The call that deploys a wallet."""

    factory: str
    data: bytes


def unwrap(signature: bytes) -> tuple[bytes, WalletDeployment | None]:
    """Return a wallet's own signature, and its deployment if ERC-6492 wraps it. Raises: Rejected."""
    if not signature.endswith(_MAGIC):
        return signature, None
    try:
        factory, data, inner = _WRAPPING.decode(_WRAPPING.selector + signature[: -len(_MAGIC)])
    except MalformedResponseError:
        raise Rejected("invalid_payload") from None
    if factory not in FACTORIES:
        raise Rejected("eip6492_factory_not_allowed")
    return inner, WalletDeployment(factory, data)
