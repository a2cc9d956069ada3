"""The functions and events of several features, and Multicall3, which combines calls at one block. No network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.adapters.evm.client.wire import hex_bytes
from app.adapters.evm.contracts.abi import ContractEvent, Function, MulticallItem
from app.adapters.jsonrpc.calls import RpcCall
from app.adapters.jsonrpc.replies import MalformedResponseError, RpcError

TRANSFER = Function("transfer(address,uint256)")
BALANCE_OF = Function("balanceOf(address)", returns="(uint256)")
ALLOWANCE = Function("allowance(address,address)", returns="(uint256)")
TRANSFER_EVENT = ContractEvent("Transfer(address indexed,address indexed,uint256)")
IS_BLACKLISTED = Function("isBlacklisted(address)", returns="(bool)")
PAUSED = Function("paused()", returns="(bool)")
"""Circle's FiatToken: whether its issuer blocks every transfer to and from an address, or all of them."""
ETH_BALANCE = Function("getEthBalance(address)", returns="(uint256)")
BLOCK_TIMESTAMP = Function("getCurrentBlockTimestamp()", returns="(uint256)")
L1_FEE = Function("getL1Fee(bytes)", returns="(uint256)")
"""GasPriceOracle's, OP stack: the L1 data fee of unsigned bytes; it adds the signature's bytes itself."""
AUTHORIZATION_USED_EVENT = ContractEvent("AuthorizationUsed(address indexed,bytes32 indexed)")
"""EIP-3009: payer and nonce, which every use of an authorization logs."""
AUTHORIZATION_STATE = Function("authorizationState(address,bytes32)", returns="(bool)")
"""EIP-3009: whether a nonce was used or cancelled."""

AGGREGATE = Function("aggregate3((address,bool,bytes)[])", returns="((bool,bytes)[])")
"""Multicall3: each call with its contract, whether it may fail, and its data."""
_WORD = 32


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
    block: str = "latest",
    *,
    tolerates: Callable[[RpcError], bool] | None = None,
) -> RpcCall[tuple[Any, ...]]:
    """Return the call that reads the results of several functions at one block."""
    return RpcCall(
        "eth_call",
        (aggregate(address, items), block),
        read=lambda result: read_aggregate(result, items),
        tolerates=tolerates,
    )


def aggregate(address: str, items: Sequence[MulticallItem]) -> dict[str, str]:
    """Return the `eth_call` that combines several calls, each of which may fail independently."""
    return {"to": address, "data": "0x" + aggregate_data(items).hex()}


def aggregate_data(items: Sequence[MulticallItem]) -> bytes:
    """Return the calldata of `AGGREGATE`, which its own encoding takes ten times as long for."""
    calls = [_number(int(item.target, 16)) + _MAY_FAIL + _number(3 * _WORD) + _dynamic(item.data) for item in items]
    offsets, end = [], len(items) * _WORD
    for call in calls:
        offsets.append(_number(end))
        end += len(call)
    return b"".join((AGGREGATE.selector, _number(_WORD), _number(len(items)), *offsets, *calls))


def read_aggregate(result: object, items: Sequence[MulticallItem]) -> tuple[Any, ...]:
    """Return the result of each call. Raises: MalformedResponseError, also if one failed that may not."""
    returned = hex_bytes(result)
    results = _usual_results(returned, len(items)) or AGGREGATE.decode_result(returned)
    if len(results) != len(items):
        raise MalformedResponseError("expected one result per inner call")
    return tuple(
        _result(item, returned if succeeded else b"")
        for item, (succeeded, returned) in zip(items, results, strict=True)
    )


def _usual_results(returned: bytes, count: int) -> list[tuple[bool, bytes]] | None:
    """Return the results of `AGGREGATE` if each is one word, as its own decoding does in ten times the time.

    None for any others, and for a result that is malformed.
    """
    size = 4 * _WORD
    ends = [count * _WORD + number * size for number in range(count)]
    head = b"".join(map(_number, (_WORD, count, *ends)))
    if len(returned) != len(head) + count * size or not returned.startswith(head):
        return None
    results = []
    for start in range(len(head), len(returned), size):
        flag, content = returned[start : start + _WORD], returned[start + 3 * _WORD : start + size]
        if returned[start + _WORD : start + 3 * _WORD] != _ONE_WORD or flag not in _FLAGS:
            return None
        results.append((_FLAGS[flag], content))
    return results


def _dynamic(content: bytes) -> bytes:
    return _number(len(content)) + content + bytes(-len(content) % _WORD)


def _number(value: int) -> bytes:
    return value.to_bytes(_WORD, "big")


_MAY_FAIL = _number(1)
_ONE_WORD = _number(2 * _WORD) + _number(_WORD)
_FLAGS = {_number(0): False, _MAY_FAIL: True}


def _result(item: MulticallItem, returned: bytes) -> Any:
    return None if item.may_fail and not returned else item.function.decode_result(returned)
