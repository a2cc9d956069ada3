"""Reads the histories of accounts and the transactions in them, in bounded portions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcSignaturesForAddressConfig, RpcTransactionConfig
from solders.rpc.requests import GetSignaturesForAddress, GetTransaction
from solders.signature import Signature
from solders.transaction_status import UiTransactionEncoding

from app.adapters.solana.endpoint import MAX_LARGE_BATCH, Call, Endpoint
from app.adapters.solana.marks import Trail
from app.adapters.solana.wire import Called, Entry, Landed, called_or_none, history, landed_or_none

T = TypeVar("T")

LONGEST_PAGE = 1_000
"""The longest list that `getSignaturesForAddress` gives."""
PATIENCE_SLOTS = 1_500
"""How long, about ten minutes, a node is given to show what it says that there is."""
_READING_NANOSECONDS = 20 * 10**9
"""A third of what a job may take: what strangers sent may be large."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one pass reads at most: transactions of all addresses together, and pages of each history.

    A page is as long as nodes give at most. There must be two at least, and one must be
    longer than what a trail remembers: then a walk through a long history ends with something unread.
    """

    transactions: int = 400
    pages: int = 10
    page: int = LONGEST_PAGE


@dataclass(frozen=True, slots=True)
class Reading:
    """An account whose history is to be read on from a trail, not further back than a slot."""

    account: str
    trail: Trail
    since: int


@dataclass(slots=True)
class _Walk:
    reading: Reading
    before: str | None
    entries: list[Entry]
    last_page: str | None = None
    is_complete: bool = False


def newest(account: str) -> Call[tuple[Entry, ...]]:
    """Return a call for the newest confirmed entry of an account."""
    return _page(account, CommitmentLevel.Confirmed, limit=1)


def page_before(account: str, before: str | None) -> Call[tuple[Entry, ...]]:
    """Return a call for a whole page of an account's confirmed history, the newest first, older than an entry."""
    return _page(account, CommitmentLevel.Confirmed, limit=LONGEST_PAGE, before=before)


def read_on(
    endpoint: Endpoint, readings: Sequence[Reading], *, portion: Portion, at_least: int
) -> Mapping[str, tuple[Trail, tuple[Entry, ...]]]:
    """Return, by account, the trail with what it leads to next, oldest first.

    A trail that still walks leads to nothing yet. `at_least` is the slot that the node must have finalized.

    Raises: EndpointFailedError.
    """
    walks = [_Walk(reading, reading.trail.before, []) for reading in readings]
    for _ in range(portion.pages):
        open_walks = [walk for walk in walks if not walk.is_complete]
        if not open_walks:
            break
        calls = [
            _page(
                walk.reading.account, CommitmentLevel.Finalized,
                before=walk.before, until=walk.reading.trail.until, limit=portion.page, at_least=at_least,
            )
            for walk in open_walks
        ]  # fmt: skip
        endpoint.run(*calls, at_once=MAX_LARGE_BATCH)
        for walk, call in zip(open_walks, calls, strict=True):
            _take(walk, call.answer, is_last=len(call.answer) < portion.page)
    return {walk.reading.account: _result(walk) for walk in walks}


def transaction(signature: str, commitment: CommitmentLevel) -> Call[Landed | None]:
    """Return a call for a transaction, whose answer `shown` reads."""
    return _transaction(signature, commitment, landed_or_none(signature))


def called(signature: str, commitment: CommitmentLevel) -> Call[Called | None]:
    """Return a call for a transaction with all that it called, also from within; it may have an error."""
    return _transaction(signature, commitment, called_or_none(signature))


def _transaction(signature: str, commitment: CommitmentLevel, read: Callable[[object], T]) -> Call[T]:
    config = RpcTransactionConfig(
        encoding=UiTransactionEncoding.Base64, commitment=commitment, max_supported_transaction_version=0
    )
    return Call(GetTransaction(Signature.from_string(signature), config), read, tolerates=lambda _error: True)


def shown(call: Call[Landed | None]) -> Landed | None:
    """Return a transaction that was called for, None where the node cannot show it so that we can read it."""
    return None if call.error is not None else call.answer


def transactions(endpoint: Endpoint, signatures: Collection[str]) -> Mapping[str, Landed | None]:
    """Return finalized transactions by signature, None where the node cannot show one.

    Those at the end are left out where time runs out, never the first ones. Raises: EndpointFailedError.
    """
    until = time.monotonic_ns() + _READING_NANOSECONDS
    waiting = list(signatures)
    read: dict[str, Landed | None] = {}
    while waiting and (not read or time.monotonic_ns() < until):
        calls = {name: transaction(name, CommitmentLevel.Finalized) for name in waiting[:MAX_LARGE_BATCH]}
        endpoint.run(*calls.values(), at_once=MAX_LARGE_BATCH)
        read |= {name: shown(call) for name, call in calls.items()}
        del waiting[:MAX_LARGE_BATCH]
    return read


def _take(walk: _Walk, page: Sequence[Entry], *, is_last: bool) -> None:
    since = walk.reading.since
    walk.last_page = walk.before
    walk.entries += [entry for entry in page if entry.slot > since]
    walk.is_complete = is_last or page[-1].slot <= since
    if page:
        walk.before = page[-1].signature


def _result(walk: _Walk) -> tuple[Trail, tuple[Entry, ...]]:
    trail = walk.reading.trail
    if not walk.is_complete:
        # From the beginning of the last page, so that the pass that comes to the end has at least that much.
        return replace(trail, before=walk.last_page), ()
    return replace(trail, before=None), tuple(reversed(walk.entries))


def _page(
    account: str,
    commitment: CommitmentLevel,
    *,
    limit: int,
    before: str | None = None,
    until: str | None = None,
    at_least: int | None = None,
) -> Call[tuple[Entry, ...]]:
    config = RpcSignaturesForAddressConfig(
        before=None if before is None else Signature.from_string(before),
        until=None if until is None else Signature.from_string(until),
        limit=limit,
        commitment=commitment,
        min_context_slot=at_least,
    )
    return Call(GetSignaturesForAddress(Pubkey.from_string(account), config), history)
