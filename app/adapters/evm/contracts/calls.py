"""Functions and events of contracts, encoded and decoded by web3, and Multicall3, which combines calls at one block.

No network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eth_abi.exceptions import DecodingError
from eth_utils.abi import function_abi_to_4byte_selector, get_abi_input_types, get_abi_output_types
from web3.exceptions import Web3Exception
from web3.types import TxParams

from app.adapters.evm import calls
from app.adapters.evm.calls import WEB3, Block, EventLog, EvmRpc, Tolerance
from app.adapters.evm.contracts.deployments import MULTICALL3, EvmDeployment
from app.adapters.jsonrpc.calls import RpcCall
from app.core.chains import Token
from app.core.foreign import MalformedResponseError

_UNREADABLE = (DecodingError, OverflowError, UnicodeDecodeError, Web3Exception)
_ABIS = json.loads(Path(__file__).with_name("abis.json").read_text())
_CONTRACTS = {name: WEB3.eth.contract(abi=abi) for name, abi in _ABIS.items()}
"""Without addresses, which differ by network and chain."""


class EvmConnection:
    """The endpoints of a chain and its contracts, as the parts of `EvmChain` use them."""

    def __init__(self, rpc: EvmRpc, deployment: EvmDeployment, native_token: Token) -> None:
        self.rpc = rpc
        self.deployment = deployment
        self.native = native_token


@dataclass(frozen=True, slots=True)
class MulticallItem:
    """One call inside a Multicall3; with `may_fail`, its result is None if it reverts or nothing is deployed there."""

    target: str
    function: Function
    data: bytes
    may_fail: bool = False


class Function:
    """A function of a contract by its name, or by its signature where the contract has several of that name."""

    def __init__(self, contract: str, name: str) -> None:
        self._contract = _CONTRACTS[contract]
        found = self._contract.get_function_by_signature if "(" in name else self._contract.get_function_by_name
        abi = found(name).abi
        self.selector = function_abi_to_4byte_selector(abi)
        self._arguments, self._results = get_abi_input_types(abi), get_abi_output_types(abi)

    def encode(self, *arguments: object) -> bytes:
        """Return the calldata of a call; the contract's own `encode_abi` takes twenty times as long to find the ABI."""
        return self.selector + WEB3.codec.encode(self._arguments, arguments)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the arguments in calldata. Raises: MalformedResponseError for another function or other arguments."""
        if data[:4] != self.selector:
            raise MalformedResponseError("expected a call of another function")
        try:
            _function, arguments = self._contract.decode_function_input(data)
        except _UNREADABLE:
            raise MalformedResponseError(f"expected ({','.join(self._arguments)})") from None
        return tuple(map(_without_names, arguments.values()))

    def decode_result(self, returned: bytes) -> Any:
        """Return the result of a call, as a tuple if the function has several. Raises: MalformedResponseError."""
        try:
            results = WEB3.codec.decode(self._results, returned)
        except _UNREADABLE:
            raise MalformedResponseError(f"expected ({','.join(self._results)})") from None
        return results[0] if len(results) == 1 else results

    def at(self, target: str, *arguments: object, may_fail: bool = False) -> MulticallItem:
        return MulticallItem(target, self, self.encode(*arguments), may_fail)


class ContractEvent:
    def __init__(self, contract: str, name: str) -> None:
        self._event = getattr(_CONTRACTS[contract].events, name)()

    def topics(self, *indexed: object) -> list[Any]:
        """Return topics that select logs by the first indexed fields: a value, a list of values, or None for any."""
        builder = self._event.build_filter()
        for field, wanted in zip(builder.indexed_args, indexed, strict=False):
            if isinstance(wanted, Iterable) and not isinstance(wanted, str | bytes):
                field.match_any(*wanted)
            elif wanted is not None:
                field.match_single(wanted)
        return list(builder.topics)

    def decode(self, log: EventLog) -> tuple[Any, ...] | None:
        """Return the fields of a log in the event's order, or None for anything but this event."""
        if log.topics[:1] != (self._event.topic,):
            return None
        try:
            fields = self._event.process_log({**log.model_dump(by_alias=True), "transactionIndex": None})["args"]
        except _UNREADABLE:
            return None
        return tuple(fields[name] for name in self._event.argument_names)


def _without_names(value: Any) -> Any:
    """Return a struct as a tuple, which web3 decodes as a dictionary."""
    if isinstance(value, dict):
        return tuple(map(_without_names, value.values()))
    return type(value)(map(_without_names, value)) if isinstance(value, list | tuple) else value


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
    items: Sequence[MulticallItem],
    block: Block = "latest",
    *,
    read: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
    tolerates: Tolerance | None = None,
) -> RpcCall[tuple[Any, ...]]:
    """Return the call that reads the results of several functions at one block."""
    sent: TxParams = {"to": MULTICALL3, "data": aggregate_data(items)}
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
