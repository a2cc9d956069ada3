"""Outcomes of payments that our wallets have signed and a seller's fee payer completes (x402).

The hash of such a transaction is the fee payer's signature, which only its owner can predict. The wallet signs it
as well, so it is in the wallet's history, and our signature identifies it there: it is over the whole message, of
which a bank executes at most one transaction.

"Void" promises that it can never land. It is returned only by the rule of decision 0012, read in the histories of all
endpoints, and ten minutes later than there: an index of addresses may be late.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog
from solders.commitment_config import CommitmentLevel
from solders.rpc.requests import GetFirstAvailableBlock

from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client import calls
from app.adapters.solana.client.rpc import MAX_LARGE_BATCH, SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import EpochInfo, number
from app.adapters.solana.track import account_history
from app.adapters.solana.track.account_history import (
    MAX_UNAVAILABLE_SLOTS,
    HistoryCursor,
    HistoryProgress,
    HistoryReadLimits,
)
from app.ports.chain import Terms, TransactionQuery

_READ_LIMITS = HistoryReadLimits()
_OTHER_VERSION = -32015
"""Agave `custom_error.rs`: UNSUPPORTED_TRANSACTION_VERSION. Ours have version 0, which is requested."""
_MAX_KNOWN = 20_000
_MARK = "payment_blockhash_slot"
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

    @classmethod
    def from_terms(cls, terms: Terms) -> OpenTransfer | None:
        """Read the output of `as_terms`; None for the terms of a transaction of our own."""
        return cls(**dict[str, Any](terms)) if _MARK in terms else None

    def as_terms(self) -> Terms:
        """Return JSON values."""
        return asdict(self)

    def has_expired(self, finalized: EpochInfo) -> bool:
        """Return whether it cannot land after this moment, and indexes had time to show it."""
        return (
            finalized.block_height > self.payment_last_height
            and finalized.slot >= self.payment_blockhash_slot + MAX_UNAVAILABLE_SLOTS
        )


@dataclass(frozen=True, slots=True)
class OpenPayment:
    """A signed transfer that may land: our signature over it, and the wallet with the history that would list it."""

    key: str
    payer: str
    signature: str
    transfer: OpenTransfer

    @classmethod
    def of(cls, query: TransactionQuery) -> OpenPayment | None:
        """Return the payment that a query asks for; None for a transaction of our own."""
        transfer = OpenTransfer.from_terms(query.terms)
        if transfer is None:
            return None
        return cls(query.key, query.sender, query.tx_hashes[0].removesuffix(FEE_SUFFIX), transfer)


@dataclass(frozen=True, slots=True)
class _HistoryView:
    """One endpoint's view by the payments' keys: the hashes of those that landed, and of which it shows everything."""

    found: Mapping[str, str]
    complete: frozenset[str]


class SponsoredTransferPoller:
    """Finds the transactions of signed transfers on the cluster."""

    def __init__(self, rpc: SolanaRpc) -> None:
        self._rpc = rpc
        # What a hash stands for never changes; None of it is evidence that a transaction landed.
        self._signatures: dict[str, frozenset[str]] = {}

    def search(
        self, payments: Sequence[OpenPayment], *, landed_only: bool
    ) -> tuple[Mapping[str, str], Collection[str]]:
        """Return the hashes of the transactions that landed, and the payments that never can, by the payments' keys.

        Raises: Unreachable.
        """
        if not payments:
            return {}, ()
        view = self._rpc.run_on_first(lambda endpoint: self._histories(endpoint, payments, CommitmentLevel.Confirmed))
        found = dict(view.found)
        missing = [each for each in payments if each.key not in found]
        if landed_only or not missing:
            return found, ()
        # All endpoints: one alone may lack a part of the history.
        views = [*self._rpc.run_on_each(lambda endpoint: self._finalized_view(endpoint, missing))]
        for view in views:
            found |= view.found
        return found, {key for view in views for key in view.complete} - found.keys()

    def _finalized_view(self, endpoint: RpcEndpoint, payments: Sequence[OpenPayment]) -> _HistoryView:
        """Read the finalized moment, and only then the histories. Raises: EndpointError."""
        now = calls.epoch_info(CommitmentLevel.Finalized)
        first = SolanaRpcCall(GetFirstAvailableBlock(), number)
        endpoint.run([now, first])
        expired = [each for each in payments if each.transfer.has_expired(now.result)]
        view = self._histories(endpoint, expired, CommitmentLevel.Finalized, at_least=now.result.slot)
        unproven = {
            each.key: each.transfer.payment_blockhash_slot
            for each in expired
            if each.key not in view.complete or first.result > each.transfer.payment_blockhash_slot
        }
        for key, slot in unproven.items():
            _log.warning("expiry_unverifiable", transaction_id=key, needs_history_since_slot=slot)
        return replace(view, complete=view.complete - unproven.keys())

    def _histories(
        self,
        endpoint: RpcEndpoint,
        payments: Sequence[OpenPayment],
        commitment: CommitmentLevel,
        *,
        at_least: int | None = None,
    ) -> _HistoryView:
        """Search the histories of the payers since the payments were signed. Raises: EndpointError."""
        since: dict[str, int] = {}
        for each in payments:
            slot = each.transfer.payment_blockhash_slot
            since[each.payer] = min(slot, since.get(each.payer, slot))
        cursors = [HistoryCursor(payer, HistoryProgress(), slot - 1) for payer, slot in since.items()]
        read = account_history.continue_reading(
            endpoint, cursors, read_limits=_READ_LIMITS, at_least=at_least, commitment=commitment
        )
        listed = {payer: [entry.signature for entry in entries] for payer, (_progress, entries) in read.items()}
        self._learn(endpoint, dict.fromkeys(name for names in listed.values() for name in names), commitment)
        found: dict[str, str] = {}
        complete: set[str] = set()
        for each in payments:
            known = {name: self._signatures.get(name) for name in listed[each.payer]}
            for name, signatures in known.items():
                if signatures and each.signature in signatures:
                    found[each.key] = name
            if read[each.payer][0].before is None and None not in known.values():
                complete.add(each.key)
        return _HistoryView(found, frozenset(complete))

    def _learn(self, endpoint: RpcEndpoint, names: Collection[str], commitment: CommitmentLevel) -> None:
        """Read which signatures transactions have; one that cannot be shown stays unknown. Raises: EndpointError."""
        unknown = [name for name in names if name not in self._signatures][: _READ_LIMITS.transactions]
        if len(self._signatures) + len(unknown) > _MAX_KNOWN:
            self._signatures.clear()
        reading = {name: account_history.transaction(name, commitment) for name in unknown}
        endpoint.run([*reading.values()], max_batch=MAX_LARGE_BATCH)
        for name, call in reading.items():
            if call.error is not None and call.error.code == _OTHER_VERSION:
                self._signatures[name] = frozenset()
            elif (landed := account_history.landed_transaction(call)) is not None:
                self._signatures[name] = frozenset(map(str, landed.transaction.signatures))
