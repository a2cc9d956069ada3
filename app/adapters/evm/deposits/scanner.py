"""Finds deposits on many addresses in few requests, at the depth at which they count.

A whole scan is made on one endpoint, so that all of its figures belong to one view of the chain; when a reorg removes
a block during the scan, the scan is discarded. USDC is read from the token's own logs.
"""

from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from app.adapters.evm import calls
from app.adapters.evm.calls import EventLog, read_logs
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import EvmConnection
from app.adapters.evm.deposits import native
from app.adapters.evm.deposits.native import EvmScanState
from app.adapters.evm.foreign_tokens import MAX_CONTRACTS, find_contracts
from app.adapters.jsonrpc.calls import EndpointError
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import USDC, ZERO_EVM_ADDRESS
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Deposit, DepositScan, Terms, WatchedAddress

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
        counted = Counter[tuple[str, str]]()
        for log, payer, recipient, units in sorted(transfers, key=lambda each: (each.log.block.number, each.log.index)):
            # A log's own index counts within its block: it changes when the transaction is mined again in another.
            ordinal = counted[log.tx_hash, recipient]
            counted[log.tx_hash, recipient] += 1
            is_new = log.block.number > start_blocks[recipient]
            # A transfer to oneself changes nothing; a transfer of zero is used for address poisoning.
            is_incoming = payer != recipient and units > 0
            # What is minted while a movement from another chain waits for its arrival belongs to that movement.
            is_bridged = payer == ZERO_EVM_ADDRESS and recipient in minted
            if is_new and is_incoming and not is_bridged and log.tx_hash not in own[recipient]:
                position = f"usdc:{recipient}:{ordinal}"
                amount = TokenAmount(units, USDC)
                found.append(Deposit(recipient, amount, log.tx_hash, payer, position, log.block))
    return tuple(deposit for deposit in found if deposit.block.number <= last), last


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


_REWIND_BLOCKS = 256
_MAX_SCAN_BLOCKS = 50_000
"""After a long pause a scan stops here and the next one continues."""


class EvmDepositScanner(EvmConnection):
    _deposit_confirmations: int
    """The depth at which a deposit counts; 1 is the newest block."""

    def scan_state(self, address: str, *, before: Terms | None = None) -> Terms:
        """Return the state of an address in the newest block; see `Chain.scan_state`. Raises: Unreachable."""
        now = self.rpc.run_on_first(lambda endpoint: _read_scan_state(endpoint, address))
        if before is None:
            return now.as_terms()
        noted = EvmScanState.from_terms(before).noting(now.number, now.native_units, now.sequence)
        return noted.as_terms()

    def unused_scan_state(self, since: int) -> Terms:
        return EvmScanState(since, since, native_units=0, sequence=0, is_unscanned=True).as_terms()

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        return self.rpc.run_on_first(lambda endpoint: self._scan(endpoint, watched, cursor))

    def _scan(self, endpoint: RpcEndpoint, watched: Sequence[WatchedAddress], cursor: BlockRef | None) -> DepositScan:
        number = endpoint.ask(calls.head()) - self._deposit_confirmations + 1
        if number < 0:
            return DepositScan(cursor, {}, {}, ())
        block, at_cursor = _blocks(endpoint, number, cursor)
        # A node that lags behind cannot show whether the cursor's block was removed by a reorg.
        is_gone = cursor is not None and at_cursor is not None and at_cursor.hash != cursor.hash
        scanned = 0 if cursor is None else cursor.number - _REWIND_BLOCKS if is_gone else cursor.number
        states = {entry.address: EvmScanState.from_terms(entry.scan_state) for entry in watched}
        # The block after which each address's logs are new.
        floors = {key: each.since if each.is_unscanned else max(each.since, scanned) for key, each in states.items()}
        first = min(floors.values(), default=number) + 1
        known = 0 if cursor is None else cursor.number
        last = min(number, max(first, known) + _MAX_SCAN_BLOCKS)
        usdc = self.deployment.usdc
        tokens, last = find_deposits(endpoint, usdc, watched, start_blocks=floors, last=last, at_least=known)
        chunks = (list(states)[at:][:_ADDRESSES_PER_QUERY] for at in range(0, len(states), _ADDRESSES_PER_QUERY))
        arrived = ChainMap(*(dict(find_contracts(endpoint, chunk, first, last)) for chunk in chunks))
        scan_states, natives = native.find_deposits(
            endpoint, watched, native_token=self.native, block=block, compared_at=known
        )
        reached = block if last == number else endpoint.ask(calls.block(last))
        if endpoint.ask(calls.block(number)) != block:
            raise EndpointError("reorganised", perhaps_executed=True, backs_off=False)
        is_behind = cursor is not None and cursor.number > reached.number
        changed: dict[str, EvmScanState] = {}
        for address, before in states.items():
            after = scan_states.get(address, before)
            after = after if is_behind else replace(after, is_unscanned=False)
            foreign = (each for each in arrived[address] if self.deployment.known_contract(each) is None)
            after = replace(after, contracts=(*dict.fromkeys((*before.contracts, *foreign)),)[-MAX_CONTRACTS:])
            if after != before:
                changed[address] = after
        terms = {address: after.as_terms() for address, after in changed.items()}
        blocks = {address: after.number for address, after in changed.items()}
        return DepositScan(cursor if is_behind else reached, terms, blocks, (*tokens, *natives))


def _read_scan_state(endpoint: RpcEndpoint, address: str) -> EvmScanState:
    head = endpoint.ask(calls.block("latest"))
    used, balance = calls.nonce(address, head.number), calls.balance(address, head.number)
    endpoint.run([used, balance])
    return EvmScanState(head.number, head.number, balance.result, used.result, is_unscanned=True)


def _blocks(endpoint: RpcEndpoint, number: int, cursor: BlockRef | None) -> tuple[BlockRef, BlockRef | None]:
    block = calls.block(number)
    if cursor is None or cursor.number == number:
        return (found := endpoint.ask(block)), found
    at_cursor = calls.header_or_none(cursor.number)
    endpoint.run([block, at_cursor])
    return block.result, None if at_cursor.result is None else at_cursor.result.ref
