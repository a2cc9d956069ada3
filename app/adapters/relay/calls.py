"""The two calls that may be signed: read out of what a service wants, compared, and written anew. Pure.

Sources: Relay's `RelayDepository.sol`, LI.FI's `ILiFi.sol` and `RelayDepositoryFacet.sol`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address

from app.adapters.evm.transactions import Target
from app.adapters.relay.deployments import DEPOSITORY, LIFI_DIAMOND
from app.core.addresses import ZERO_EVM_ADDRESS
from app.ports.bridges import Ask
from app.ports.errors import Rejected

_DEPOSIT = bytes.fromhex("49290c1c")  # depositNative(address,bytes32)
_VIA_LIFI = bytes.fromhex("092e8fa4")  # startBridgeTokensViaRelayDepository(BridgeData,RelayDepositoryData)
_DEPOSIT_TYPES = ("address", "bytes32")
_LIFI_TYPES = (
    "(bytes32,string,string,address,address,address,uint256,uint256,bool,bool)",
    "(bytes32,address)",
)
_ID = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A transaction as a service wants it signed."""

    to: str
    value_units: int
    data: bytes
    chain_id: int


def deposit(wanted: Wanted, ask: Ask, *, source_id: int) -> Target:
    """Return the deposit for the sender under the order's id. Raises: Rejected("unsafe_instructions")."""
    _assert_frame(wanted, ask, DEPOSITORY, _DEPOSIT, source_id=source_id)
    depositor, order_id = _decoded(_DEPOSIT_TYPES, wanted.data)
    if to_checksum_address(depositor) not in (ask.sender, ZERO_EVM_ADDRESS):
        raise Rejected("unsafe_instructions")
    said = encode(_DEPOSIT_TYPES, [ask.sender, order_id])
    return Target(DEPOSITORY, ask.amount.units, _DEPOSIT + said)


def deposit_by_lifi(wanted: Wanted, ask: Ask, *, source_id: int, destination_id: int) -> Target:
    """Return the same by LI.FI's contract, without swaps or calls. Raises: Rejected("unsafe_instructions")."""
    _assert_frame(wanted, ask, LIFI_DIAMOND, _VIA_LIFI, source_id=source_id)
    bridge, order = _decoded(_LIFI_TYPES, wanted.data)
    (_id, _bridge, _integrator, _referrer, asset, receiver, units, destination, swaps, calls) = bridge
    is_right = (
        to_checksum_address(asset) == ZERO_EVM_ADDRESS
        and to_checksum_address(receiver) == ask.recipient
        and to_checksum_address(order[1]) == ask.sender
        and (units, destination, swaps, calls) == (ask.amount.units, destination_id, False, False)
    )
    if not is_right:
        raise Rejected("unsafe_instructions")
    return Target(LIFI_DIAMOND, ask.amount.units, _VIA_LIFI + encode(_LIFI_TYPES, [bridge, order]))


def order_id(text: object) -> str:
    """Return an order's id. Raises: ValueError."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise ValueError("not an order's id")
    return text.lower()


def _assert_frame(wanted: Wanted, ask: Ask, contract: str, selector: bytes, *, source_id: int) -> None:
    """Compare contract, chain, value and function."""
    try:
        to = to_checksum_address(wanted.to)
    except ValueError:
        raise Rejected("unsafe_instructions") from None
    if (to, wanted.value_units, wanted.chain_id) != (contract, ask.amount.units, source_id):
        raise Rejected("unsafe_instructions")
    if wanted.data[:4] != selector:
        raise Rejected("unsafe_instructions")


def _decoded(types: tuple[str, ...], content: bytes) -> tuple[Any, ...]:
    try:
        return tuple(decode(types, content[4:]))
    except (DecodingError, OverflowError, UnicodeDecodeError):
        raise Rejected("unsafe_instructions") from None
