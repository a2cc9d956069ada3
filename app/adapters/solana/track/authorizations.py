"""Outcomes of payments that our wallets have signed and a seller's fee payer completes (x402).

The hash of such a transaction is the fee payer's signature, which only its owner can predict. The wallet signs it
as well, so it is in the wallet's history, and our signature identifies it there: it is over the whole message, of
which a bank executes at most one transaction. A transaction whose fee this service pays is found by its hash.

"Void" promises that it can never land. It is returned only by the rule of decision 0012, read in the histories of all
endpoints, and ten minutes later than there: an index of addresses may be late.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from typing import Any, NamedTuple, Self

import structlog
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.requests import GetFirstAvailableBlock

from app.adapters.jsonrpc.calls import EndpointError
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import MAX_LARGE_BATCH, SolanaConnection, SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import EpochInfo, LandedTransaction, number
from app.adapters.solana.track import account_history
from app.ports.chain import Terms, TransactionQuery

_READ_LIMITS = account_history.HistoryReadLimits()
OTHER_VERSION = -32015
"""Agave `custom_error.rs`: UNSUPPORTED_TRANSACTION_VERSION. Ours have version 0, which is requested."""
_MAX_KNOWN = 20_000
FEE_SUFFIX = ":fee"
"""After our signature in the identity of a fee that it authorizes together with a transfer."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenTransfer:
    """When a signed transfer can land, as the terms of its signed bytes hold it."""

    payment_blockhash_slot: int
    """It cannot land before."""
    payment_last_height: int
    """It cannot land after this block height."""
    submission: str | None = None
    """The only transaction that can contain it, if this service pays its fee."""

    @classmethod
    def from_terms(cls, terms: Terms) -> Self | None:
        """Read the output of `as_terms`; None for the terms of a transaction of our own."""
        return cls(**dict[str, Any](terms)) if "payment_blockhash_slot" in terms else None

    @classmethod
    def submission_of(cls, query: TransactionQuery) -> TransactionQuery:
        """Return the query of the transaction that submits a transfer if it is known, else the query unchanged."""
        found = cls.from_terms(query.terms)
        if found is None or found.submission is None:
            return query
        terms, height = {"blockhash_slot": found.payment_blockhash_slot}, found.payment_last_height
        return replace(query, tx_hashes=(found.submission,), expires_at_height=height, terms=terms)

    def as_terms(self) -> Terms:
        return asdict(self)

    def has_expired(self, finalized: EpochInfo) -> bool:
        """Return whether it cannot land after this moment, and indexes had time to show it."""
        return (
            finalized.block_height > self.payment_last_height
            and finalized.slot >= self.payment_blockhash_slot + account_history.MAX_UNAVAILABLE_SLOTS
        )


class OpenPayment(NamedTuple):
    """A signed transfer that may land, and the query for it; its sender's history would list it by our signature."""

    query: TransactionQuery
    transfer: OpenTransfer

    @property
    def signature(self) -> str:
        return self.query.tx_hashes[0].removesuffix(FEE_SUFFIX)


_HistoryView = tuple[Mapping[str, str], frozenset[str]]
"""One endpoint's view by the payments' keys: the hashes that landed, and those with a complete history."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """The reading of a payer's history from its newest end; `started` is None while a payment can still land."""

    cursor: account_history.HistoryCursor
    last_height: int
    started: EpochInfo | None

    @classmethod
    def from_newest(cls, payer: str, payments: Sequence[OpenPayment], now: EpochInfo | None) -> Self:
        since = min(each.transfer.payment_blockhash_slot for each in payments) - 1
        last_height = max(each.transfer.payment_last_height for each in payments)
        return cls(account_history.HistoryCursor(payer, account_history.HistoryProgress(), since), last_height, now)

    def may_contain(self, slot: int) -> bool:
        """Return whether a payment can be in a slot: there are no more blocks than slots."""
        return self.started is None or slot <= self.started.slot - (self.started.block_height - self.last_height)

    def covers(self, transfer: OpenTransfer) -> bool:
        """Return whether the history, read to its end, shows a transfer if it landed."""
        is_after = transfer.payment_blockhash_slot > self.cursor.since
        is_within = is_after and transfer.payment_last_height <= self.last_height
        return is_within and self.started is not None and transfer.has_expired(self.started)


class SponsoredTransferPoller(SolanaConnection):
    def __init__(self, rpc: SolanaRpc, mint: Pubkey, level: CommitmentLevel) -> None:
        super().__init__(rpc, mint, level)
        # What a hash stands for never changes; None of it is evidence that a transaction landed.
        self._signatures: dict[str, frozenset[str]] = {}
        # Histories that are too long for one pass. Another process reads them from the newest end again.
        self._walks: dict[tuple[RpcEndpoint, str], _Walk] = {}

    def _search_payments(
        self, payments: Sequence[OpenPayment], *, landed_only: bool
    ) -> tuple[Mapping[str, str], Collection[str]]:
        """Return the hashes of what landed, and what never can, by the payments' keys. Raises: Unreachable."""
        if not payments:
            return {}, ()
        view = self.rpc.run_on_first(lambda endpoint: self._histories(endpoint, payments, CommitmentLevel.Confirmed))
        found = dict(view[0])
        missing = [each for each in payments if each.query.key not in found]
        if landed_only or not missing:
            return found, ()
        # All endpoints: one alone may lack a part of the history.
        views = [*self.rpc.run_on_each(lambda endpoint: self._finalized_view(endpoint, missing))]
        for landed, _ in views:
            found |= landed
        return found, {key for _, complete in views for key in complete} - found.keys()

    def _finalized_view(self, endpoint: RpcEndpoint, payments: Sequence[OpenPayment]) -> _HistoryView:
        """Read the finalized moment, and only then the histories. Raises: EndpointError."""
        now = calls.epoch_info(CommitmentLevel.Finalized)
        first = SolanaRpcCall(GetFirstAvailableBlock(), number)
        endpoint.run([now, first])
        expired = [each for each in payments if each.transfer.has_expired(now.result)]
        found, complete = self._histories(endpoint, expired, CommitmentLevel.Finalized, now=now.result)
        unproven = {
            each.query.key: each.transfer.payment_blockhash_slot
            for each in expired
            if each.query.key not in complete or first.result > each.transfer.payment_blockhash_slot
        }
        for key, slot in unproven.items():
            _log.warning("expiry_unverifiable", transaction_id=key, needs_history_since_slot=slot)
        return found, complete - unproven.keys()

    def _histories(
        self,
        endpoint: RpcEndpoint,
        payments: Sequence[OpenPayment],
        commitment: CommitmentLevel,
        *,
        now: EpochInfo | None = None,
    ) -> _HistoryView:
        """Search the payers' histories since the signatures, for expired ones in passes. Raises: EndpointError."""
        by_payer: dict[str, list[OpenPayment]] = {}
        for each in payments:
            by_payer.setdefault(each.query.sender, []).append(each)
        walks = {
            payer: (now and self._walks.get((endpoint, payer))) or _Walk.from_newest(payer, signed, now)
            for payer, signed in by_payer.items()
        }
        try:
            read = account_history.continue_reading(
                endpoint, [walk.cursor for walk in walks.values()], read_limits=_READ_LIMITS, commitment=commitment,
                at_least=None if now is None else now.slot,
            )  # fmt: skip
        except EndpointError:
            for payer in walks:
                self._walks.pop((endpoint, payer), None)
            raise
        # Others can add any number of later entries: they are listed, but not read.
        listed = {
            payer: [entry.signature for entry in entries if walks[payer].may_contain(entry.slot)]
            for payer, (_progress, entries) in read.items()
        }
        shortest_first: list[list[str]] = sorted(listed.values(), key=len)
        self._learn(endpoint, dict.fromkeys(chain.from_iterable(shortest_first)), commitment)
        found: dict[str, str] = {}
        complete: set[str] = set()
        for payer, (progress, _entries) in read.items():
            walk, known = walks[payer], {name: self._signatures.get(name) for name in listed[payer]}
            for name, each in product(known, by_payer[payer]):
                if each.signature in (known[name] or ()):
                    found[each.query.key] = name
            if now is None or None in known.values():
                continue
            if progress.before is None:
                self._walks.pop((endpoint, payer), None)
                complete |= {each.query.key for each in by_payer[payer] if walk.covers(each.transfer)}
            else:
                self._walks[endpoint, payer] = replace(walk, cursor=replace(walk.cursor, progress=progress))
        return found, frozenset(complete)

    def _learn(self, endpoint: RpcEndpoint, names: Collection[str], commitment: CommitmentLevel) -> None:
        """Read which signatures transactions have; one that cannot be shown stays unknown. Raises: EndpointError."""
        unknown = [name for name in names if name not in self._signatures][: _READ_LIMITS.transactions]
        if len(self._signatures) + len(unknown) > _MAX_KNOWN:
            self._signatures = {name: self._signatures[name] for name in names if name in self._signatures}
        reading = {name: account_history.transaction(name, commitment, LandedTransaction) for name in unknown}
        endpoint.run([*reading.values()], max_batch=MAX_LARGE_BATCH)
        for name, call in reading.items():
            if call.error is not None and call.error.code == OTHER_VERSION:
                self._signatures[name] = frozenset()
            elif (landed := call.result_or_none) is not None:
                self._signatures[name] = frozenset(map(str, landed.transaction.signatures))
