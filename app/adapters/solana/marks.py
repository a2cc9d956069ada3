"""What the scan for deposits remembers of an address between two looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.adapters.solana.wire import Entry
from app.ports.chain import Terms

_REMEMBERED = 16
"""A node's index may learn of a transaction late; one that appears among so many before the newest is still seen."""


@dataclass(frozen=True, slots=True)
class Trail:
    """How far the history of one account was read.

    `recent` has the newest entries that were read, oldest first. `before` is set while a history that is too long
    for one pass is walked through from its new end to the old one.
    """

    recent: tuple[Entry, ...] = ()
    before: str | None = None

    @property
    def until(self) -> str | None:
        """Return the signature behind which everything was read."""
        return self.recent[0].signature if self.recent else None

    def with_read(self, entry: Entry) -> Trail:
        """Return the trail after one more entry."""
        return replace(self, recent=(*self.recent, entry)[-_REMEMBERED:])


@dataclass(frozen=True, slots=True)
class Mark:
    """An address: what of its balances is explained by what was read, counted from the slot `since` on.

    While the balances are as explained nothing needs to be read. `doubt` is the slot at which they were first
    found to differ without a transaction to tell why.
    """

    since: int
    lamports: int
    usdc_units: int
    wallet: Trail = Trail()
    tokens: Trail = Trail()
    doubt: int | None = None

    @property
    def seen(self) -> frozenset[str]:
        """Return the signatures that need not be read again."""
        return frozenset(entry.signature for entry in (*self.wallet.recent, *self.tokens.recent))

    @property
    def is_walking(self) -> bool:
        """Tell whether a long history is being walked through."""
        return self.wallet.before is not None or self.tokens.before is not None

    def as_terms(self) -> Terms:
        """Write it as JSON values."""
        return {
            "since": self.since,
            "lamports": str(self.lamports),
            "usdc_units": str(self.usdc_units),
            "wallet": _written(self.wallet.recent),
            "wallet_before": self.wallet.before,
            "tokens": _written(self.tokens.recent),
            "tokens_before": self.tokens.before,
            "doubt": self.doubt,
        }

    @classmethod
    def of(cls, terms: Terms) -> Mark:
        """Read what `as_terms` wrote."""
        doubt, wallet_before, tokens_before = (
            terms["doubt"], terms["wallet_before"], terms["tokens_before"],
        )  # fmt: skip
        return cls(
            since=int(terms["since"] or 0),
            lamports=int(terms["lamports"] or 0),
            usdc_units=int(terms["usdc_units"] or 0),
            wallet=Trail(_read(terms["wallet"]), None if wallet_before is None else str(wallet_before)),
            tokens=Trail(_read(terms["tokens"]), None if tokens_before is None else str(tokens_before)),
            doubt=None if doubt is None else int(doubt),
        )


def _written(recent: Sequence[Entry]) -> str:
    return " ".join(f"{entry.slot}:{entry.signature}" for entry in recent)


def _read(written: str | int | None) -> tuple[Entry, ...]:
    parts = [part.partition(":") for part in str(written or "").split()]
    return tuple(Entry(signature, int(slot)) for slot, _, signature in parts)
