"""Histories of accounts and the transactions in them, read in bounded portions."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcSignaturesForAddressConfig, RpcTransactionConfig
from solders.rpc.requests import GetSignaturesForAddress, GetTransaction
from solders.signature import Signature
from solders.transaction_status import UiTransactionEncoding

from app.adapters.jsonrpc.calls import EndpointError, RpcError, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client.calls import MAX_LARGE_BATCH, SolanaRpcCall
from app.adapters.solana.client.wire import HistoryEntry, LandedTransaction, history, landed_or_none

LandedT = TypeVar("LandedT", bound=LandedTransaction)

MAX_PAGE = 1_000
MAX_UNAVAILABLE_SLOTS = 1_500
"""How long, about ten minutes, a node may take to show a transaction that it lists."""
_READ_SECONDS = 20
"""A third of a job's time limit: transactions of others may be large."""
_MAX_RECENT = 16
"""A node's index may be late; a transaction that appears among this many before the newest is still found."""


@dataclass(frozen=True, slots=True)
class HistoryProgress:
    """The progress of reading one account's history.

    `recent` has the newest entries that were read, oldest first. `before` is set while a history that is too long for
    one pass is read from its newest end to the oldest.
    """

    recent: tuple[HistoryEntry, ...] = ()
    before: str | None = None

    @property
    def until(self) -> str | None:
        """Return the signature up to which everything was read."""
        return self.recent[0].signature if self.recent else None

    def with_read(self, entry: HistoryEntry) -> Self:
        return replace(self, recent=(*self.recent, entry)[-_MAX_RECENT:])


@dataclass(frozen=True, slots=True)
class HistoryReadLimits:
    """The limits of one pass: transactions of all addresses together, and pages of each history.

    A page is as long as nodes allow. There must be at least two, and one must be longer than
    `HistoryProgress.recent`: then the last page of a long history contains something unread.
    """

    transactions: int = 400
    pages: int = 10
    page: int = MAX_PAGE


@dataclass(frozen=True, slots=True)
class HistoryCursor:
    """An account with the progress to continue from, not further back than a slot."""

    account: str
    progress: HistoryProgress
    since: int


@dataclass(slots=True)
class _HistoryWalk:
    reading: HistoryCursor
    before: str | None
    entries: list[HistoryEntry]
    last_page: str | None = None
    is_complete: bool = False


def continue_reading(
    endpoint: RpcEndpoint,
    cursors: Sequence[HistoryCursor],
    *,
    read_limits: HistoryReadLimits,
    at_least: int | None = None,
    commitment: CommitmentLevel = CommitmentLevel.Finalized,
) -> Mapping[str, tuple[HistoryProgress, tuple[HistoryEntry, ...]]]:
    """Return, by account, the progress and the entries that were read, oldest first.

    While `before` is set, older entries precede them, which come next. `at_least` is the slot that the node must
    have reached at this level.

    Raises: EndpointError.
    """
    found: dict[str, tuple[HistoryProgress, tuple[HistoryEntry, ...]]] = {}
    walks = [_HistoryWalk(reading, reading.progress.before, []) for reading in cursors]
    for _ in range(read_limits.pages):
        open_walks = [walk for walk in walks if not walk.is_complete]
        if not open_walks:
            break
        calls = [
            page(
                walk.reading.account, commitment,
                before=walk.before, until=walk.reading.progress.until, limit=read_limits.page, at_least=at_least,
            )
            for walk in open_walks
        ]  # fmt: skip
        endpoint.run(calls, max_batch=MAX_LARGE_BATCH)
        for walk, call in zip(open_walks, calls, strict=True):
            if not call.result and walk.before == walk.reading.progress.before is not None:
                # A pass continues at the beginning of a full page. This node does not know the entry before it.
                raise EndpointError("unexpected_answer")
            entries, since = call.result, walk.reading.since
            walk.last_page = walk.before
            walk.entries += [entry for entry in entries if entry.slot > since]
            walk.is_complete = len(entries) < read_limits.page or entries[-1].slot <= since
            walk.before = entries[-1].signature if entries else walk.before
    # A long history continues at the beginning of its last page, so that the final pass has at least that much.
    for walk in walks:
        progress = replace(walk.reading.progress, before=None if walk.is_complete else walk.last_page)
        found[walk.reading.account] = progress, tuple(reversed(walk.entries))
    return found


def transaction(
    signature: str,
    commitment: CommitmentLevel,
    kind: type[LandedT],
    *,
    tolerates: Callable[[RpcError], bool] | None = accept_any_error,
) -> SolanaRpcCall[LandedT | None]:
    """Return a call for what is read of a transaction; by default it may have an error."""
    config = RpcTransactionConfig(
        encoding=UiTransactionEncoding.Base64, commitment=commitment, max_supported_transaction_version=0
    )
    request = GetTransaction(Signature.from_string(signature), config)
    return SolanaRpcCall(request, landed_or_none(signature, kind), tolerates=tolerates)


def transactions(
    endpoint: RpcEndpoint,
    signatures: Sequence[str],
    commitment: CommitmentLevel,
    kind: type[LandedT],
    *,
    max_seconds: int = _READ_SECONDS,
) -> Iterator[tuple[str, LandedT | None]]:
    """Yield transactions, None for one not shown; a time limit omits the last. Raises: EndpointError."""
    until = time.monotonic() + max_seconds
    for start in range(0, len(signatures), MAX_LARGE_BATCH):
        if start and time.monotonic() >= until:
            return
        batch = signatures[start : start + MAX_LARGE_BATCH]
        calls = [transaction(signature, commitment, kind) for signature in batch]
        endpoint.run(calls, max_batch=MAX_LARGE_BATCH)
        yield from zip(batch, (call.result_or_none for call in calls), strict=True)


def page(
    account: str,
    commitment: CommitmentLevel = CommitmentLevel.Confirmed,
    *,
    limit: int = MAX_PAGE,
    before: str | None = None,
    until: str | None = None,
    at_least: int | None = None,
) -> SolanaRpcCall[tuple[HistoryEntry, ...]]:
    """Return a call for a page of an account's history, newest first, from a node that has a slot."""
    first, last = (None if each is None else Signature.from_string(each) for each in (before, until))
    config = RpcSignaturesForAddressConfig(
        before=first, until=last, limit=limit, commitment=commitment, min_context_slot=at_least
    )
    return SolanaRpcCall(GetSignaturesForAddress(Pubkey.from_string(account), config), history)
