"""Signatures of wallets that are contracts: EIP-1271, and ERC-6492 for wallets that are not deployed yet. No I/O.

Only the chain can verify them. ERC-6492 wraps a signature with the call that deploys its wallet; only known factories
are called (`known_wallets`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.adapters.evm.contracts.abi import Function
from app.adapters.evm.x402 import known_wallets
from app.adapters.jsonrpc.replies import MalformedResponseError
from app.ports.errors import Rejected

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
    if not known_wallets.is_factory(factory):
        raise Rejected(known_wallets.FACTORY_NOT_ALLOWED)
    return inner, WalletDeployment(factory, data)
