"""Hands this process's tallies on to where those of all processes are added up."""

from __future__ import annotations

import atexit
import threading

from app.core import tallies
from app.ports.tallies import Tallies

_EVERY_SECONDS = 5


def hand_over(sums: Tallies) -> None:
    """Hand over what was counted since the last time; while nobody takes it, it is kept."""
    counts = tallies.take()
    if counts and not sums.add(counts):
        tallies.give_back(counts)


def begin(sums: Tallies) -> None:
    """Hand over every few seconds from now on, and once more when the process ends. For processes that last."""

    def go_on() -> None:
        while not ended.wait(_EVERY_SECONDS):
            hand_over(sums)

    ended = threading.Event()
    threading.Thread(target=go_on, name="tallies", daemon=True).start()
    atexit.register(hand_over, sums)
