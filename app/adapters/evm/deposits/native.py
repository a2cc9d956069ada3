"""Native coins that arrived from outside, found by comparing balances; the stored state of each address.

Contracts pay without a transaction of their own, so a scan of transactions would miss them; the balance misses
nothing. Our own transactions are subtracted from the difference, and the rest is matched with transactions if
there are any.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import structlog

from app.adapters.evm import calls
from app.adapters.evm.calls import RpcTransaction
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import MULTICALL3
from app.adapters.evm.foreign_tokens import CONTRACTS_TERM
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Deposit, Terms, WatchedAddress


@dataclass(frozen=True, slots=True)
class EvmScanState:
    """Native balance and nonce at block `number`; nothing up to block `since` ever counts as a deposit.

    `is_unscanned` until the first scan: the common cursor may be beyond `since` before the state was stored.
    `readings` are balance and nonce at later blocks; each separates what arrived before it from what arrived after.
    """

    since: int
    number: int
    native_units: int
    sequence: int
    is_unscanned: bool
    readings: tuple[tuple[int, int, int], ...] = ()
    contracts: tuple[str, ...] = ()

    @classmethod
    def from_terms(cls, terms: Terms) -> Self:
        since, number, native, sequence, fresh = (
            int(terms[name] or 0) for name in ("since", "number", "native", "sequence", "fresh")
        )
        parts = [[int(part) for part in reading.split(":")] for reading in str(terms.get("readings") or "").split()]
        readings = tuple((number, native, sequence) for number, native, sequence in parts)
        contracts = str(terms.get(CONTRACTS_TERM) or "").split()
        return cls(since, number, native, sequence, bool(fresh), readings, tuple(contracts))

    def as_terms(self) -> Terms:
        """Return JSON values; wei would not fit the integers of every JSON reader."""
        return {
            "since": self.since, "number": self.number, "native": str(self.native_units), "sequence": self.sequence,
            "fresh": int(self.is_unscanned),
            "readings": " ".join(":".join(map(str, reading)) for reading in self.readings),
            CONTRACTS_TERM: " ".join(self.contracts),
        }  # fmt: skip

    def at_block(self, number: int, native_units: int, sequence: int) -> Self:
        later = tuple(reading for reading in self.readings if reading[0] > number)
        return replace(self, number=number, native_units=native_units, sequence=sequence, readings=later)

    def noting(self, number: int, native_units: int, sequence: int) -> Self:
        *_, newest = (self.number, self.native_units, self.sequence), *self.readings
        if number <= newest[0] or len(self.readings) >= _MAX_READINGS:
            return self
        if not self.readings and newest[1:] == (native_units, sequence):
            return self.at_block(number, native_units, sequence)
        return replace(self, readings=(*self.readings, (number, native_units, sequence)))


_MAX_READINGS = 20
_GIVE_UP_AFTER_BLOCKS = 2_000
_ADDRESSES_PER_CALL = 500
_BLOCKS_PER_REQUEST = 8  # whole blocks are large
_MAX_SEARCH_BLOCKS = 256
_RENEW_AFTER_BLOCKS = 32
"""An unchanged scan state of a used address is renewed at this interval: each renewal is a database write."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _BalanceIncrease:
    """What arrived after the block of a scan state, up to block `until`."""

    address: str
    scan_state: EvmScanState
    units: int
    own_hashes: frozenset[str]
    unchanged_at: int
    until: int


class _IncomingTransfer(NamedTuple):
    transaction: RpcTransaction
    block: BlockRef


def find_deposits(
    endpoint: RpcEndpoint, watched: Sequence[WatchedAddress], *, native_token: Token, block: BlockRef, compared_at: int
) -> tuple[Mapping[str, EvmScanState], tuple[Deposit, ...]]:
    """Return the new scan states and the deposits up to a block. Raises: EndpointError.

    An address keeps its scan state while one of its own transactions is pending: the difference is undetermined. The
    state of an unused address is not renewed; its balance was compared at block `compared_at`.
    """
    states = [(entry, EvmScanState.from_terms(entry.scan_state)) for entry in watched]
    outdated = [(entry, state) for entry, state in states if state.number < block.number]
    balances = _balances(endpoint, [entry.address for entry, _ in outdated], block)
    scan_states: dict[str, EvmScanState] = {}
    moved: list[tuple[WatchedAddress, EvmScanState]] = []
    for entry, state in outdated:
        may_have_changed = any(
            ours.sequence is not None and ours.sequence >= state.sequence for ours in entry.own_transactions
        )
        if balances[entry.address] != state.native_units or may_have_changed:
            moved.append((entry, state))
        elif entry.own_transactions and block.number - state.number >= _RENEW_AFTER_BLOCKS:
            scan_states[entry.address] = state.at_block(block.number, state.native_units, state.sequence)
    counts = {entry.address: calls.nonce(entry.address, block.number) for entry, _ in moved}
    endpoint.run([*counts.values()])
    increases: list[_BalanceIncrease] = []
    for entry, state in moved:
        at = block.number, balances[entry.address], counts[entry.address].result
        after, found = _increases(entry, state, at=at)
        if after != state:
            scan_states[entry.address] = after
        # Of an unused address, the balance was the same at the last comparison.
        is_used = entry.own_transactions or state.readings or state.is_unscanned
        increases += [
            replace(gain, unchanged_at=gain.scan_state.number if is_used else max(gain.scan_state.number, compared_at))
            for gain in found
        ]
    arrivals = _incoming_transfers(endpoint, increases, until=block.number)
    return scan_states, tuple(
        deposit
        for gain in increases
        for deposit in _deposits(gain, arrivals.get(gain.address, ()), native_token, at=block)
    )


def _increases(
    entry: WatchedAddress, state: EvmScanState, *, at: tuple[int, int, int]
) -> tuple[EvmScanState, list[_BalanceIncrease]]:
    """Return the scan state at a block, and what arrived between the readings up to there.

    A reading whose block was removed by a reorg does not agree with the next one; then all of it arrived in one step.
    """
    own = frozenset(ours.tx_hash for ours in entry.own_transactions)
    readings = (*(reading for reading in state.readings if reading[0] < at[0]), at)
    for steps in (readings, (at,)):
        reached, found = state, []
        for number, native_units, sequence in steps:
            explained = _own_outflow(entry, reached, until=sequence, at=number)
            if explained is None:
                return _renewed_if_unexplainable(entry, state, at=at), []
            units = native_units - reached.native_units + explained
            if units:
                found.append(_BalanceIncrease(entry.address, reached, units, own, reached.number, number))
            reached = reached.at_block(number, native_units, sequence)
        if all(gain.units > 0 for gain in found):
            return reached, found
    _log.warning("unexplained_outflow", address=entry.address, units=str(-found[0].units), block=at[0])
    return reached, []


def _renewed_if_unexplainable(entry: WatchedAddress, state: EvmScanState, *, at: tuple[int, int, int]) -> EvmScanState:
    """Return the state at a block if nothing is pending that could explain the nonces that were used long ago.

    A restored database does not know them. What the state would still show is given up, so that later deposits are
    found.
    """
    is_pending = entry.expected_tokens or any(ours.native_out_units is None for ours in entry.own_transactions)
    if is_pending or at[0] - state.number <= _GIVE_UP_AFTER_BLOCKS:
        return state
    _log.warning("unexplained_nonces", address=entry.address, block=at[0])
    return state.at_block(*at)


def _own_outflow(entry: WatchedAddress, scan_state: EvmScanState, *, until: int, at: int) -> int | None:
    """Return what the address's own transactions took since the scan state, or None while that is undetermined."""
    if any(token != USDC for token in entry.expected_tokens):
        return None  # some is about to be minted for the wallet, and the amount is not final yet
    if until < scan_state.sequence:
        return None  # the block of the scan state was removed by a reorg, and its transactions are not mined again yet
    outflows: dict[int, list[int]] = {}
    for ours in entry.own_transactions:
        if ours.sequence is not None and ours.native_out_units is not None:
            outflows.setdefault(ours.sequence, []).append(ours.native_out_units)
    arrived = [
        ours
        for ours in entry.own_transactions
        if ours.sequence is None and ours.block_number is not None and scan_state.number < ours.block_number <= at
    ]
    used = range(scan_state.sequence, until)
    unknown = {sequence for sequence in used if sequence not in outflows}
    if entry.is_exported:  # others sign, too: what they spent lowers the balance, so too little is found at worst
        unknown &= {ours.sequence for ours in entry.own_transactions}
    if len(unknown) > sum(ours.consumes_nonce for ours in arrived):
        return None
    arrived_units = sum(ours.native_out_units or 0 for ours in arrived)
    return arrived_units + sum(units for sequence in used for units in outflows.get(sequence, ()))


def _deposits(
    increase: _BalanceIncrease, transfers: Sequence[_IncomingTransfer], native_token: Token, *, at: BlockRef
) -> Iterable[Deposit]:
    """Yield the transactions that paid the address, and the rest as one deposit without a hash."""
    parts: list[tuple[int, str | None, str | None, BlockRef, int | None]] = [
        (paid.value_units, paid.tx_hash, paid.sender, block, None)
        for paid, block in transfers
        if increase.unchanged_at < block.number <= increase.until
    ]
    rest = increase.units - sum(units for units, *_ in parts)
    if rest > 0:
        parts.append((rest, None, None, at, increase.scan_state.number))
    for units, tx_hash, payer, block, arrived_after in parts:
        yield Deposit(
            address=increase.address, amount=TokenAmount(units, native_token), tx_hash=tx_hash, payer=payer,
            position=f"native:{increase.address}" if tx_hash else f"native:{increase.address}:{increase.until}",
            block=block, scan_state_before=increase.scan_state.as_terms(), arrived_after=arrived_after,
        )  # fmt: skip
    if rest < 0:
        _log.warning("unexplained_outflow", address=increase.address, units=str(-rest), block=at.number)


def _incoming_transfers(
    endpoint: RpcEndpoint, increases: Sequence[_BalanceIncrease], *, until: int
) -> Mapping[str, list[_IncomingTransfer]]:
    """Find the successful transactions that paid the addresses directly."""
    near = {gain.address: gain for gain in reversed(increases) if until - gain.unchanged_at <= _MAX_SEARCH_BLOCKS}
    if not near:
        return {}
    first = min(gain.unchanged_at for gain in near.values()) + 1
    candidates: list[_IncomingTransfer] = []
    for start in range(first, until + 1, _BLOCKS_PER_REQUEST):
        blocks = [
            calls.whole_block(number, tolerates=accept_any_error)
            for number in range(start, min(start + _BLOCKS_PER_REQUEST, until + 1))
        ]
        endpoint.run(blocks)
        for call in blocks:
            if call.error is None and call.result is not None:
                ref, listed = call.result.ref, call.result.transactions
                candidates += [_IncomingTransfer(entry, ref) for entry in listed if _is_incoming(entry, ref, near)]
    receipts = [calls.receipt(arrival.transaction.tx_hash) for arrival in candidates]
    endpoint.run(receipts)
    found: dict[str, list[_IncomingTransfer]] = {}
    for arrival, receipt in zip(candidates, receipts, strict=True):
        if receipt.result is not None and receipt.result.succeeded:
            found.setdefault(arrival.transaction.recipient or "", []).append(arrival)
    return found


def _is_incoming(entry: RpcTransaction, block: BlockRef, near: Mapping[str, _BalanceIncrease]) -> bool:
    gain = near.get(entry.recipient or "")
    return (
        gain is not None
        and entry.value_units > 0
        and entry.sender != gain.address
        and entry.tx_hash not in gain.own_hashes
        and block.number > gain.unchanged_at
    )


def _balances(endpoint: RpcEndpoint, addresses: Sequence[str], block: BlockRef) -> Mapping[str, int]:
    readings: list[RpcCall[tuple[int, ...]]] = []
    for start in range(0, len(addresses), _ADDRESSES_PER_CALL):
        chunk = addresses[start : start + _ADDRESSES_PER_CALL]
        inner = [contracts.ETH_BALANCE.at(MULTICALL3, address) for address in chunk]
        readings.append(contracts.multicall(inner, block.number))
    endpoint.run(readings)
    figures = [units for reading in readings for units in reading.result]
    return dict(zip(addresses, figures, strict=True))
