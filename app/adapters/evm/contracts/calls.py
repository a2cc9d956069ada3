"""The functions and events of several features, and Multicall3, which combines calls at one block. No network."""

from collections.abc import Callable, Sequence
from typing import Any

from web3.types import TxParams

from app.adapters.evm.client import calls
from app.adapters.evm.client.calls import Block, Tolerance
from app.adapters.evm.contracts.abi import ContractEvent, Function, MulticallItem
from app.adapters.jsonrpc.calls import RpcCall
from app.core.foreign import MalformedResponseError

TRANSFER = Function("fiat_token", "transfer")
BALANCE_OF = Function("fiat_token", "balanceOf")
ALLOWANCE = Function("fiat_token", "allowance")
PERMIT_NONCE = Function("fiat_token", "nonces")
"""EIP-2612: how many permits of an owner were used."""
TRANSFER_EVENT = ContractEvent("fiat_token", "Transfer")
IS_BLACKLISTED = Function("fiat_token", "isBlacklisted")
PAUSED = Function("fiat_token", "paused")
"""Circle's FiatToken: whether its issuer blocks every transfer to and from an address, or all of them."""
ETH_BALANCE = Function("multicall3", "getEthBalance")
BLOCK_TIMESTAMP = Function("multicall3", "getCurrentBlockTimestamp")
L1_FEE = Function("gas_price_oracle", "getL1Fee")
"""The OP stack's: the L1 data fee of unsigned bytes; it adds the signature's bytes itself."""
AUTHORIZATION_USED_EVENT = ContractEvent("fiat_token", "AuthorizationUsed")
"""EIP-3009: payer and nonce, which every use of an authorization logs."""
AUTHORIZATION_STATE = Function("fiat_token", "authorizationState")
AGGREGATE = Function("multicall3", "aggregate3")
"""Multicall3: each call with its contract, whether it may fail, and its data."""


def read_transfer(data: bytes) -> tuple[str, int] | None:
    """Return recipient and units of calldata that transfers ERC-20 tokens, or None for any other."""
    try:
        recipient, units = TRANSFER.decode(data)
    except MalformedResponseError:
        return None
    return (recipient, units) if TRANSFER.encode(recipient, units) == data else None


def multicall(
    address: str,
    items: Sequence[MulticallItem],
    block: Block = "latest",
    *,
    read: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
    tolerates: Tolerance | None = None,
) -> RpcCall[tuple[Any, ...]]:
    """Return the call that reads the results of several functions at one block."""
    sent: TxParams = {"to": address, "data": aggregate_data(items)}
    return calls.contract_call(sent, lambda returned: read(read_aggregate(returned, items)), block, tolerates=tolerates)


def aggregate_data(items: Sequence[MulticallItem]) -> bytes:
    return AGGREGATE.encode([(item.target, True, item.data) for item in items])


def read_aggregate(returned: bytes, items: Sequence[MulticallItem]) -> tuple[Any, ...]:
    """Return the result of each call. Raises: MalformedResponseError, also if one failed that may not."""
    results = AGGREGATE.decode_result(returned)
    if len(results) != len(items):
        raise MalformedResponseError("expected one result per inner call")
    answers = [returned if succeeded else b"" for succeeded, returned in results]
    return tuple(
        None if item.may_fail and not answer else item.function.decode_result(answer)
        for item, answer in zip(items, answers, strict=True)
    )
