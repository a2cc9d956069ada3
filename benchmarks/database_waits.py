"""Wait events of PostgreSQL sessions, sampled from pg_stat_activity many times a second."""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.postgres import Server

_SAMPLE_INTERVAL_SECONDS = 0.02
_SAMPLE_QUERY = """
    SELECT coalesce(wait_event_type || ':' || wait_event, 'on a processor'), state, query
    FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_TABLE = re.compile(r"\b(?:FROM|INTO|UPDATE)\s+(\w+)", re.IGNORECASE)
_IDLE_IN_TRANSACTION = "idle in transaction"


@dataclass(slots=True)
class WaitSamples:
    """Counts of wait events; idle sessions are not counted."""

    samples: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    locked: Counter[str] = field(default_factory=Counter)
    sessions: int = 0

    def shares(self, most: int = 6) -> str:
        """Return the most frequent wait events with their shares."""
        total = self.waiting.total() or 1
        return ", ".join(f"{name} {count / total:.0%}" for name, count in self.waiting.most_common(most))

    def locks(self, most: int = 4) -> str:
        """Return the statements that waited for locks most often, by kind and table."""
        return ", ".join(f"{name} {count}" for name, count in self.locked.most_common(most)) or "none"

    @property
    def busy(self) -> float:
        """Average number of sessions that were active or waiting."""
        return self.waiting.total() / (self.samples or 1)


@contextlib.contextmanager
def sample_waits(server: Server, database: str) -> Iterator[WaitSamples]:
    """Sample until the context ends."""
    seen, ended = WaitSamples(), threading.Event()

    def take_sample() -> None:
        with server.connect(database) as connection:
            while not ended.wait(_SAMPLE_INTERVAL_SECONDS):
                rows = connection.execute(_SAMPLE_QUERY, [database]).fetchall()
                seen.samples += 1
                seen.sessions = max(seen.sessions, len(rows))
                for waits_for, state, query in rows:
                    _add_sample(seen, waits_for, state, query)

    thread = threading.Thread(target=take_sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _add_sample(seen: WaitSamples, waits_for: str, state: str, query: str) -> None:
    if state == _IDLE_IN_TRANSACTION:
        seen.waiting["idle in transaction"] += 1
    elif state == "active" and waits_for != "Client:ClientRead":
        seen.waiting[waits_for] += 1
        if waits_for.startswith("Lock:"):
            table = _TABLE.search(query)
            seen.locked[f"{query.split(None, 1)[0]} {table[1] if table else ''}".strip()] += 1
