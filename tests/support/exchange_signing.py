"""Signatures of the exchange's actions, as clients make them from a payload: hash and EIP-712 message.

Source: the exchange's documentation, "Signing".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgpack
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak

from app.adapters.evm.signatures import digest_of
from app.adapters.perpdex.exchange import PerpdexDeployment
from app.core.chains import ZERO_EVM_ADDRESS
from app.ports.perpdex import Action, Json


class ActionPayload(NamedTuple):
    action: Action
    nonce: int


_DOMAIN = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]
_AGENT = [{"name": "source", "type": "string"}, {"name": "connectionId", "type": "bytes32"}]
_PAYMENT = [
    {"name": "hyperliquidChain", "type": "string"},
    {"name": "destination", "type": "string"},
    {"name": "amount", "type": "string"},
    {"name": "time", "type": "uint64"},
]
_PRIMARY_TYPES = {"usdSend": "HyperliquidTransaction:UsdSend", "withdraw3": "HyperliquidTransaction:Withdraw"}
_ORDER_CHAIN_ID = 1337


def action_hash(payload: ActionPayload, *, expires_after: int | None = None) -> bytes:
    """Return the hash by which orders, cancels and leverage are signed (`connectionId`), without a vault."""
    packed: bytes = msgpack.packb(payload.action)
    packed += payload.nonce.to_bytes(8, "big") + b"\x00"
    if expires_after is not None:
        packed += b"\x00" + expires_after.to_bytes(8, "big")
    return keccak(packed)


def typed_data(payload: ActionPayload, *, deployment: PerpdexDeployment) -> Mapping[str, Json]:
    """Return the EIP-712 message that the owner of an account signs for a payload."""
    primary = _PRIMARY_TYPES.get(payload.action["type"])
    if primary is None:
        message = {"source": deployment.source, "connectionId": action_hash(payload)}
        return _typed("Exchange", _ORDER_CHAIN_ID, primary="Agent", members=_AGENT, message=message)
    return _typed(
        "HyperliquidSignTransaction",
        int(payload.action["signatureChainId"], 16),
        primary=primary,
        members=_PAYMENT,
        message={member["name"]: payload.action[member["name"]] for member in _PAYMENT},
    )


def digest(payload: ActionPayload, *, deployment: PerpdexDeployment) -> bytes:
    """Return the 32-byte digest for a wallet's signer."""
    return digest_of(encode_typed_data(full_message=dict(typed_data(payload, deployment=deployment))))


def _typed(
    name: str, chain_id: int, *, primary: str, members: list[dict[str, str]], message: Mapping[str, Json]
) -> Mapping[str, Json]:
    return {
        "domain": {"name": name, "version": "1", "chainId": chain_id, "verifyingContract": ZERO_EVM_ADDRESS},
        "types": {primary: members, "EIP712Domain": _DOMAIN},
        "primaryType": primary,
        "message": message,
    }
