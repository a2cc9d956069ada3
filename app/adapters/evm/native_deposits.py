"""Native coins that came in from outside, by the difference of balances.

Contracts pay without a transaction of their own, so a scan of transactions would miss them; the balance
misses nothing. Our own transactions are taken out of the difference, and what remains is matched with
transactions where there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from app.adapters.evm import contracts
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import Call, Endpoint, RpcError
from app.adapters.evm.marks import Mark
from app.adapters.evm.wire import Transaction, block_or_none, count, receipt_or_none
from app.core.chains import USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Deposit, OwnTransaction, WatchedAddress

_ADDRESSES_PER_CALL = 500
_BLOCKS_PER_REQUEST = 8  # whole blocks are large
_LONGEST_SEARCH_BLOCKS = 256
_RENEW_AFTER_BLOCKS = 32
"""A mark that says nothing new is renewed this seldom: each renewal is a write somewhere."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Gain:
    address: str
    mark: Mark
    units: int
    own_hashes: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Arrival:
    transaction: Transaction
    block: BlockRef


def find(
    endpoint: Endpoint,
    deployment: Deployment,
    watched: Sequence[WatchedAddress],
    *,
    native_token: Token,
    block: BlockRef,
) -> tuple[Mapping[str, Mark], tuple[Deposit, ...]]:
    """Return the new marks and the deposits up to a block. Raises: EndpointFailed.

    An address keeps its mark while one of its own transactions is open: the difference cannot be told yet.
    """
    due = [entry for entry in watched if Mark.of(entry.mark).number < block.number]
    balances = _balances(endpoint, deployment.multicall3, [entry.address for entry in due], block)
    marks: dict[str, Mark] = {}
    moved: list[WatchedAddress] = []
    for entry in due:
        mark = Mark.of(entry.mark)
        if balances[entry.address] != mark.native_units or _has_moved(entry.own, mark):
            moved.append(entry)
        elif block.number - mark.number >= _RENEW_AFTER_BLOCKS:
            marks[entry.address] = mark.moved_to(block.number, mark.native_units, mark.sequence)
    counts = _counts(endpoint, [entry.address for entry in moved], block)
    gains: list[_Gain] = []
    for entry in moved:
        mark = Mark.of(entry.mark)
        explained = _explained(entry, mark, until=counts[entry.address], at=block.number)
        if explained is None:
            continue
        units = balances[entry.address] - mark.native_units + explained
        marks[entry.address] = mark.moved_to(block.number, balances[entry.address], counts[entry.address])
        if units > 0:
            own = frozenset(ours.tx_hash for ours in entry.own)
            gains.append(_Gain(entry.address, mark, units, own))
        elif units < 0:
            _log.warning("unexplained_outflow", address=entry.address, units=str(-units), block=block.number)
    arrivals = _arrivals(endpoint, gains, until=block.number)
    deposits: list[Deposit] = []
    for gain in gains:
        deposits.extend(_deposits(gain, arrivals.get(gain.address, ()), native_token, at=block))
    return marks, tuple(deposits)


def _has_moved(own: Iterable[OwnTransaction], mark: Mark) -> bool:
    return any(ours.sequence is not None and ours.sequence >= mark.sequence for ours in own)


def _explained(entry: WatchedAddress, mark: Mark, *, until: int, at: int) -> int | None:
    """Return what the address's own transactions took since the mark, None while that cannot be said."""
    if any(token != USDC for token in entry.awaits):
        return None  # a bridge is about to bring some, and only its end tells how much
    if until < mark.sequence:
        return None  # the block of the mark was reorganised away, and its transactions are not back yet
    outs: dict[int, list[int]] = {}
    for ours in entry.own:
        if ours.sequence is not None and ours.native_out_units is not None:
            outs.setdefault(ours.sequence, []).append(ours.native_out_units)
    arrived = [
        ours
        for ours in entry.own
        if ours.sequence is None and ours.block_number is not None and mark.number < ours.block_number <= at
    ]
    used = range(mark.sequence, until)
    unknown = [sequence for sequence in used if sequence not in outs]
    if len(unknown) > sum(ours.takes_slot for ours in arrived):
        return None
    brought = sum(ours.native_out_units or 0 for ours in arrived)
    return brought + sum(units for sequence in used for units in outs.get(sequence, ()))


def _deposits(
    gain: _Gain, arrivals: Sequence[_Arrival], native_token: Token, *, at: BlockRef
) -> Iterable[Deposit]:
    """Yield the transactions that brought something, and the rest as one deposit without a hash."""
    position = f"native:{gain.address}"
    resume = gain.mark.as_terms()
    rest = gain.units
    for arrival in arrivals:
        rest -= arrival.transaction.value_units
        yield Deposit(
            address=gain.address,
            amount=TokenAmount(arrival.transaction.value_units, native_token),
            tx_hash=arrival.transaction.tx_hash,
            payer=arrival.transaction.sender,
            position=position,
            block=arrival.block,
            mark_before=resume,
        )
    if rest > 0:
        yield Deposit(
            address=gain.address,
            amount=TokenAmount(rest, native_token),
            tx_hash=None,
            payer=None,
            position=position,
            block=at,
            mark_before=resume,
        )
    elif rest < 0:
        _log.warning("unexplained_outflow", address=gain.address, units=str(-rest), block=at.number)


def _arrivals(endpoint: Endpoint, gains: Sequence[_Gain], *, until: int) -> Mapping[str, list[_Arrival]]:
    """Find the successful transactions that paid the addresses directly."""
    near = {gain.address: gain for gain in gains if until - gain.mark.number <= _LONGEST_SEARCH_BLOCKS}
    if not near:
        return {}
    first = min(gain.mark.number for gain in near.values()) + 1
    candidates: list[_Arrival] = []
    for start in range(first, until + 1, _BLOCKS_PER_REQUEST):
        calls = [
            Call("eth_getBlockByNumber", (hex(number), True), read=block_or_none, tolerates=_anything)
            for number in range(start, min(start + _BLOCKS_PER_REQUEST, until + 1))
        ]
        endpoint.run(calls)
        for call in calls:
            if call.error is None and call.answer is not None:
                ref, listed = call.answer.ref, call.answer.transactions
                candidates += [_Arrival(entry, ref) for entry in listed if _pays(entry, ref, near)]
    receipts = [
        Call("eth_getTransactionReceipt", (arrival.transaction.tx_hash,), read=receipt_or_none)
        for arrival in candidates
    ]
    endpoint.run(receipts)
    found: dict[str, list[_Arrival]] = {}
    for arrival, receipt in zip(candidates, receipts, strict=True):
        if receipt.answer is not None and receipt.answer.succeeded:
            found.setdefault(arrival.transaction.recipient or "", []).append(arrival)
    return found


def _pays(entry: Transaction, block: BlockRef, near: Mapping[str, _Gain]) -> bool:
    gain = near.get(entry.recipient or "")
    return (
        gain is not None
        and entry.value_units > 0
        and entry.sender != gain.address
        and entry.tx_hash not in gain.own_hashes
        and block.number > gain.mark.number
    )


def _balances(
    endpoint: Endpoint, multicall: str, addresses: Sequence[str], block: BlockRef
) -> Mapping[str, int]:
    calls: list[Call[tuple[int, ...]]] = []
    for start in range(0, len(addresses), _ADDRESSES_PER_CALL):
        chunk = addresses[start : start + _ADDRESSES_PER_CALL]
        inner = [contracts.eth_balance(multicall, address) for address in chunk]
        calls.append(contracts.numbers_call(multicall, inner, hex(block.number)))
    endpoint.run(calls)
    figures = [units for call in calls for units in call.answer]
    return dict(zip(addresses, figures, strict=True))


def _counts(endpoint: Endpoint, addresses: Sequence[str], block: BlockRef) -> Mapping[str, int]:
    calls = [
        Call("eth_getTransactionCount", (address, hex(block.number)), read=count) for address in addresses
    ]
    endpoint.run(calls)
    return {address: call.answer for address, call in zip(addresses, calls, strict=True)}


def _anything(_error: RpcError) -> bool:
    return True
