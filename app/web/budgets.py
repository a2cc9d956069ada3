"""What a process has little of, and who may have how much of it: threads that wait for others, and memory for bodies.

One budget of threads for all who wait (callers, upstreams, chains, shops), because bounds that are counted apart add
up to more than there is. The threads that it never gives out are for requests that wait for nobody.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from flask import current_app

from app.ports import provider

STRANGERS = ""
"""All who have shown no key yet: they are many, and nobody can tell them apart, so they count as one."""

_EXTENSION = "thread_budget"
# Beside the lanes: as many threads, of few the half. Some are never given out, the others are of the small uses.
_THREADS_BESIDE_LANES = 100
_OWN_BESIDE_LANES = 20
_MOST_TIMES_WHAT_IS_LEFT = 4
_BODY_BYTES = 256 * 2**20


class Use(StrEnum):
    """What something of a budget is used for."""

    STRANGER = "stranger"
    """A thread waits for somebody who has shown no key to send or to read."""
    CALLER = "caller"
    """A thread waits likewise for somebody who has."""
    UPSTREAM = "upstream"
    """A thread forwards a call, and waits for its caller to read the answer."""
    OUTCOME = "outcome"
    """A thread waits for a chain or a shop, because its caller wants to."""
    BODY = "body"
    """Bytes of a body that was read."""


_SMALL = (Use.STRANGER, Use.CALLER, Use.OUTCOME)


class Budget:
    """So much of something, a part of it promised to each use, and none of it all for one caller."""

    def __init__(self, total: int, own: Mapping[Use, int]) -> None:
        """Have so much in all, of which each use has its own."""
        self._total = total
        self._own = dict(own)
        self._taken: Counter[Use] = Counter()
        self._held: Counter[tuple[Use, str]] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def of_threads(cls, threads: int) -> Budget:
        """Of so many threads, those that may wait: lanes all but a hundred, of few threads half.

        Each small use has a fifth of these others for itself, and two fifths are never given out.
        """
        lanes = max(threads - _THREADS_BESIDE_LANES, threads // 2, 1)
        own = min(_OWN_BESIDE_LANES, lanes // 5)
        return cls(lanes + own * len(_SMALL), {Use.UPSTREAM: lanes // 2, **dict.fromkeys(_SMALL, own)})

    @classmethod
    def of_bodies(cls) -> Budget:
        """Of a process's memory, what bodies may take that were not small enough to be gathered."""
        return cls(_BODY_BYTES, {Use.BODY: _BODY_BYTES})

    def most(self, use: Use) -> int:
        """Return how much there is for a use while there is no other."""
        return self._total - self._promised(use, Counter())

    def take(self, use: Use, whose: str, amount: int = 1) -> bool:
        """Take so much for somebody; tell whether there was enough.

        Nobody gets more than four times what was left before: four fifths of all at most, of the rest the next one
        four fifths, and so on, so that something is left for whoever has little.
        """
        with self._lock:
            left = self._total - self._taken.total() - self._promised(use, self._taken)
            held = self._held[use, whose]
            if amount > left or held + amount > _MOST_TIMES_WHAT_IS_LEFT * left:
                return False
            self._taken[use] += amount
            self._held[use, whose] = held + amount
            return True

    def give_back(self, use: Use, whose: str, amount: int = 1) -> None:
        """Give so much back."""
        with self._lock:
            self._taken[use] -= amount
            self._held[use, whose] -= amount
            if not self._held[use, whose]:
                del self._held[use, whose]

    @contextmanager
    def place(self, use: Use, whose: str) -> Iterator[bool]:
        """Take one for as long as the block lasts; tell whether there was one."""
        taken = self.take(use, whose)
        try:
            yield taken
        finally:
            if taken:
                self.give_back(use, whose)

    def _promised(self, use: Use, taken: Mapping[Use, int]) -> int:
        """Return what other uses have not taken of their own."""
        return sum(max(0, own - taken[other]) for other, own in self._own.items() if other is not use)


def open_threads() -> None:
    """Make the budget of the threads that serve this application; the factory calls it once, and first."""
    current_app.extensions[_EXTENSION] = Budget.of_threads(provider.settings().web_threads)


def threads() -> Budget:
    """Return the budget of the running application's threads."""
    found: Budget = current_app.extensions[_EXTENSION]
    return found


def threads_of(application: object, *, otherwise: int) -> Budget:
    """Return the same of an application from outside it; of one that has none, a budget of so many threads."""
    extensions: Mapping[str, Budget] = getattr(application, "extensions", {})
    return extensions.get(_EXTENSION) or Budget.of_threads(otherwise)
