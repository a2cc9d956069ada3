"""What was seen of an address already, as it is stored between two scans."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.ports.chain import Terms


@dataclass(frozen=True, slots=True)
class Mark:
    """Native balance and nonce at block `number`; nothing up to block `since` ever counts as a deposit.

    `fresh` until the first scan: the common cursor may have passed `since` before the mark was stored.
    """

    since: int
    number: int
    native_units: int
    sequence: int
    fresh: bool

    @classmethod
    def of(cls, terms: Terms) -> Mark:
        """Read what `as_terms` wrote."""
        since, number, native, sequence, fresh = (
            int(terms[name] or 0) for name in ("since", "number", "native", "sequence", "fresh")
        )
        return cls(since, number, native, sequence, fresh=bool(fresh))

    def as_terms(self) -> Terms:
        """Write the mark as JSON values; wei would not fit the integers of every JSON reader."""
        return {
            "since": self.since,
            "number": self.number,
            "native": str(self.native_units),
            "sequence": self.sequence,
            "fresh": int(self.fresh),
        }

    def moved_to(self, number: int, native_units: int, sequence: int) -> Mark:
        """Return the mark at a later block."""
        return replace(self, number=number, native_units=native_units, sequence=sequence)

    def scanned(self) -> Mark:
        """Return the mark after its first scan."""
        return replace(self, fresh=False)
