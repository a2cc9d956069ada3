"""The stored state of an address between two scans."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.ports.chain import Terms


@dataclass(frozen=True, slots=True)
class EvmScanState:
    """Native balance and nonce at block `number`; nothing up to block `since` ever counts as a deposit.

    `is_unscanned` until the first scan: the common cursor may be beyond `since` before the state was stored.
    """

    since: int
    number: int
    native_units: int
    sequence: int
    is_unscanned: bool

    @classmethod
    def from_terms(cls, terms: Terms) -> EvmScanState:
        since, number, native, sequence, fresh = (
            int(terms[name] or 0) for name in ("since", "number", "native", "sequence", "fresh")
        )
        return cls(since, number, native, sequence, is_unscanned=bool(fresh))

    def as_terms(self) -> Terms:
        """Return JSON values; wei would not fit the integers of every JSON reader."""
        return {
            "since": self.since,
            "number": self.number,
            "native": str(self.native_units),
            "sequence": self.sequence,
            "fresh": int(self.is_unscanned),
        }

    def at_block(self, number: int, native_units: int, sequence: int) -> EvmScanState:
        return replace(self, number=number, native_units=native_units, sequence=sequence)
