"""Settlement of payments by Permit2, as a seller's facilitator does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from app.adapters.evm.contracts.deployments import X402_PERMIT2_PROXY
from sandbox.evm import EvmNode
from tests.support.evm import await_mined

_TYPES = (
    "(uint256,uint256,bytes32,bytes32,uint8)",
    "((address,uint256),uint256,uint256)",
    "address",
    "(address,uint256)",
    "bytes",
)
_SELECTOR = keccak(text=f"settleWithPermit({','.join(_TYPES)})")[:4]


def settle_by_permit2(node: EvmNode, payment: Mapping[str, Any]) -> str:
    """Submit a payment with the payer's allowance, and return the hash."""
    signed = payment["payload"]["permit2Authorization"]
    permit = payment["extensions"]["eip2612GasSponsoring"]["info"]
    signature = bytes.fromhex(permit["signature"][2:])
    arguments = (
        (int(permit["amount"]), int(permit["deadline"]), signature[:32], signature[32:64], signature[64]),
        (
            (signed["permitted"]["token"], int(signed["permitted"]["amount"])),
            int(signed["nonce"]),
            int(signed["deadline"]),
        ),
        signed["from"],
        (signed["witness"]["to"], int(signed["witness"]["validAfter"])),
        bytes.fromhex(payment["payload"]["signature"][2:]),
    )
    call = _SELECTOR + encode(_TYPES, arguments)
    rich = node.rpc("eth_accounts")[1]
    sent = {"from": rich, "to": X402_PERMIT2_PROXY, "data": "0x" + call.hex(), "gas": hex(400_000)}
    tx_hash = str(node.rpc("eth_sendTransaction", sent))
    await_mined(node, tx_hash)
    return tx_hash
