"""The stored state of an address between two scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.adapters.solana.client.wire import HistoryEntry
from app.adapters.solana.track.account_history import HistoryProgress
from app.ports.chain import Terms


@dataclass(frozen=True, slots=True)
class SolanaScanState:
    """An address: the balances that its read history explains, counted from the slot `since` on.

    While the balances are as explained nothing needs to be read. `mismatch_slot` is the slot at which they were first
    found to differ without a transaction that explains it.
    """

    since: int
    lamports: int
    usdc_units: int
    wallet: HistoryProgress = field(default_factory=HistoryProgress)
    tokens: HistoryProgress = field(default_factory=HistoryProgress)
    mismatch_slot: int | None = None

    @property
    def recent_signatures(self) -> frozenset[str]:
        """Return the signatures that need not be read again."""
        return frozenset(entry.signature for entry in (*self.wallet.recent, *self.tokens.recent))

    @property
    def is_reading_history(self) -> bool:
        return self.wallet.before is not None or self.tokens.before is not None

    def as_terms(self) -> Terms:
        return {
            "since": self.since,
            "lamports": str(self.lamports),
            "usdc_units": str(self.usdc_units),
            "wallet": _format_entries(self.wallet.recent),
            "wallet_before": self.wallet.before,
            "tokens": _format_entries(self.tokens.recent),
            "tokens_before": self.tokens.before,
            "doubt": self.mismatch_slot,
        }

    @classmethod
    def from_terms(cls, terms: Terms) -> SolanaScanState:
        doubt = terms["doubt"]
        return cls(
            since=int(terms["since"] or 0),
            lamports=int(terms["lamports"] or 0),
            usdc_units=int(terms["usdc_units"] or 0),
            wallet=_parse_progress(terms, "wallet"),
            tokens=_parse_progress(terms, "tokens"),
            mismatch_slot=None if doubt is None else int(doubt),
        )


def _format_entries(recent: Sequence[HistoryEntry]) -> str:
    return " ".join(f"{entry.slot}:{entry.signature}" for entry in recent)


def _parse_progress(terms: Terms, name: str) -> HistoryProgress:
    parts = [part.partition(":") for part in str(terms[name] or "").split()]
    before = terms[f"{name}_before"]
    return HistoryProgress(
        tuple(HistoryEntry.model_construct(signature=signature, slot=int(slot)) for slot, _, signature in parts),
        None if before is None else str(before),
    )
