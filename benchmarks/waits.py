"""What a database's sessions wait for, by looking at them many times a second, as PostgreSQL itself tells it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.postgres import Server

_EVERY_SECONDS = 0.02
_LOOK = """
    SELECT coalesce(wait_event_type || ':' || wait_event, 'on a processor'), state, query
    FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_TABLE = re.compile(r"\b(?:FROM|INTO|UPDATE)\s+(\w+)", re.IGNORECASE)
_IDLE_IN_UNIT = "idle in transaction"


@dataclass(slots=True)
class Seen:
    """How often sessions were seen at what; sessions that rest are not counted."""

    looks: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    locked: Counter[str] = field(default_factory=Counter)
    sessions: int = 0

    def shares(self, most: int = 6) -> str:
        """Return what was seen most, as parts of all that sessions were busy with."""
        total = self.waiting.total() or 1
        return ", ".join(f"{name} {count / total:.0%}" for name, count in self.waiting.most_common(most))

    def locks(self, most: int = 4) -> str:
        """Return the statements that waited for a lock most, by kind and table."""
        return ", ".join(f"{name} {count}" for name, count in self.locked.most_common(most)) or "none"

    @property
    def busy(self) -> float:
        """How many sessions were at work or waiting at a time, on average."""
        return self.waiting.total() / (self.looks or 1)


@contextlib.contextmanager
def watched(server: Server, database: str) -> Iterator[Seen]:
    """Look until the context ends; what was seen is complete then."""
    seen, ended = Seen(), threading.Event()

    def look() -> None:
        with server.connect(database) as connection:
            while not ended.wait(_EVERY_SECONDS):
                rows = connection.execute(_LOOK, [database]).fetchall()
                seen.looks += 1
                seen.sessions = max(seen.sessions, len(rows))
                for waits_for, state, query in rows:
                    _note(seen, waits_for, state, query)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _note(seen: Seen, waits_for: str, state: str, query: str) -> None:
    if state == _IDLE_IN_UNIT:
        seen.waiting["in a unit, for Python"] += 1
    elif state == "active" and waits_for != "Client:ClientRead":
        seen.waiting[waits_for] += 1
        if waits_for.startswith("Lock:"):
            table = _TABLE.search(query)
            seen.locked[f"{query.split(None, 1)[0]} {table[1] if table else ''}".strip()] += 1
