"""The two calls that may be signed: decoded from a service's request, compared, and encoded again. No I/O.

Sources: Relay's `RelayDepository.sol`, LI.FI's `ILiFi.sol` and `RelayDepositoryFacet.sol`.
"""

from __future__ import annotations

from typing import Annotated, Any

from eth_utils.address import to_checksum_address
from pydantic import BeforeValidator, Field, StringConstraints

from app.adapters.bridges.relay.deployments import DEPOSITORY, LIFI_DIAMOND
from app.adapters.evm.contracts.abi import Function
from app.adapters.evm.send.transactions import CallTarget
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.foreign import ForeignModel, HexBytes, U64Digits, U256Digits, parsed
from app.ports.bridges import BridgeRequest
from app.ports.errors import Rejected

_DEPOSIT = Function("relay_depository", "depositNative")
_VIA_LIFI = Function("lifi_diamond", "startBridgeTokensViaRelayDepository")


def _from_hex(value: object) -> object:
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else value


OrderId = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{64}$", to_lower=True)]
OptionalOrderId = Annotated[OrderId | None, BeforeValidator(lambda value: value or None)]
Seconds = Annotated[int, Field(ge=0, lt=2**31), parsed(lambda seconds: int(seconds or 0))]


class RequestedTransaction(ForeignModel):
    """A transaction that a service requests to be signed; the value is in decimal digits, or hexadecimal after 0x."""

    to: str
    value: Annotated[U256Digits, BeforeValidator(_from_hex)]
    data: HexBytes
    chain_id: U64Digits


def deposit_call(requested: RequestedTransaction, request: BridgeRequest, *, source_id: int) -> CallTarget:
    """Return the deposit for the sender under the order's id. Raises: Rejected("unsafe_instructions")."""
    depositor, order_id = _arguments(requested, request, DEPOSITORY, _DEPOSIT, source_id=source_id)
    if depositor not in (request.sender, ZERO_EVM_ADDRESS):
        raise Rejected("unsafe_instructions")
    return CallTarget(DEPOSITORY, request.amount.units, _DEPOSIT.encode(request.sender, order_id))


def lifi_deposit_call(
    requested: RequestedTransaction, request: BridgeRequest, *, source_id: int, destination_id: int
) -> CallTarget:
    """Return the same by LI.FI's contract, without swaps or calls. Raises: Rejected("unsafe_instructions")."""
    bridge, order = _arguments(requested, request, LIFI_DIAMOND, _VIA_LIFI, source_id=source_id)
    asset, receiver, units, destination, swaps, calls = bridge[4:]
    is_right = (
        (asset, receiver, order[1]) == (ZERO_EVM_ADDRESS, request.recipient, request.sender)
        and (units, destination, swaps, calls) == (request.amount.units, destination_id, False, False)
    )  # fmt: skip
    if not is_right:
        raise Rejected("unsafe_instructions")
    return CallTarget(LIFI_DIAMOND, request.amount.units, _VIA_LIFI.encode(bridge, order))


def _arguments(
    requested: RequestedTransaction, request: BridgeRequest, contract: str, function: Function, *, source_id: int
) -> tuple[Any, ...]:
    """Compare contract, chain, value and function, and return the arguments. Raises: Rejected."""
    try:
        to = to_checksum_address(requested.to)
        arguments = function.decode(requested.data)
    except ValueError:
        raise Rejected("unsafe_instructions") from None
    if (to, requested.value, requested.chain_id) != (contract, request.amount.units, source_id):
        raise Rejected("unsafe_instructions")
    return arguments
