"""USDC that arrived from outside, read from the token's own logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.adapters.evm.client.logs import read_logs
from app.adapters.evm.client.wire import EventLog
from app.adapters.evm.contracts import calls as contracts
from app.adapters.jsonrpc.calls import EndpointError
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.ports.chain import Deposit, WatchedAddress

_ADDRESSES_PER_QUERY = 500
"""geth accepts a thousand values of a topic (`maxSubTopics`)."""
_MAX_RANGES = 50


class _Transfer(NamedTuple):
    log: EventLog
    payer: str
    recipient: str
    units: int


def find_deposits(
    endpoint: RpcEndpoint,
    usdc: str,
    watched: Sequence[WatchedAddress],
    *,
    start_blocks: Mapping[str, int],
    last: int,
    at_least: int,
) -> tuple[tuple[Deposit, ...], int]:
    """Return the deposits of each address after its start block, and the last block that was read for all of them.

    That is `last`, or an earlier one from `at_least` on where the endpoint accepts short ranges only: the scan of a
    long pause would exceed the time limit of its job, again and again. Raises: EndpointError.
    """
    found: list[Deposit] = []
    for start in range(0, len(watched), _ADDRESSES_PER_QUERY):
        chunk = watched[start : start + _ADDRESSES_PER_QUERY]
        own = {entry.address: frozenset(ours.tx_hash for ours in entry.own_transactions) for entry in chunk}
        minted = frozenset(entry.address for entry in chunk if USDC in entry.expected_tokens)
        first = min(start_blocks[entry.address] for entry in chunk) + 1
        transfers, last = _transfers(endpoint, usdc, own.keys(), first=first, last=last, at_least=at_least)
        for transfer, ordinal in _numbered(transfers):
            log, payer, recipient, units = transfer
            is_new = log.block.number > start_blocks[recipient]
            # A transfer to oneself changes nothing; a transfer of zero is used for address poisoning.
            is_incoming = payer != recipient and units > 0
            # A mint while a bridge is about to deliver belongs to that bridge.
            is_bridged = payer == ZERO_EVM_ADDRESS and recipient in minted
            if is_new and is_incoming and not is_bridged and log.tx_hash not in own[recipient]:
                position = f"usdc:{recipient}:{ordinal}"
                amount = TokenAmount(units, USDC)
                found.append(Deposit(recipient, amount, log.tx_hash, payer, position, log.block))
    return tuple(deposit for deposit in found if deposit.block.number <= last), last


def _numbered(transfers: Sequence[_Transfer]) -> Iterator[tuple[_Transfer, int]]:
    """Return the transfers, numbered by recipient within each transaction.

    A log's own index counts within its block: it changes when the transaction is mined again in another.
    """
    counted: dict[tuple[str, str], int] = {}
    for transfer in sorted(transfers, key=lambda entry: (entry.log.block.number, entry.log.index)):
        key = (transfer.log.tx_hash, transfer.recipient)
        counted[key] = counted.get(key, -1) + 1
        yield transfer, counted[key]


def _transfers(
    endpoint: RpcEndpoint, usdc: str, addresses: Collection[str], *, first: int, last: int, at_least: int
) -> tuple[list[_Transfer], int]:
    """Return the transfers to the addresses, and the block up to which they were read."""
    topics = contracts.TRANSFER_EVENT.topics(None, addresses)
    found: list[_Transfer] = []
    ranges = read_logs(endpoint, usdc, topics, first=first, last=last)
    for number, (until, logs) in enumerate(ranges, 1):
        transfers = [_Transfer(log, *(contracts.TRANSFER_EVENT.decode(log) or ("", "", 0))) for log in logs]
        if any(transfer.recipient not in addresses for transfer in transfers):
            raise EndpointError("unexpected_answer", perhaps_executed=True)
        found += transfers
        if number >= _MAX_RANGES and until >= at_least:
            return found, until
    return found, last
