"""Slots, commitment levels and the queue of valid blockhashes.

Nothing runs in the background: the chain computes its slot from the clock on access.
"""

import hashlib
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from solders.hash import Hash

MAX_PROCESSING_AGE: Final = 150
"""Blocks during which a blockhash may be used (agave `clock::MAX_PROCESSING_AGE`)."""
MAX_RECENT_BLOCKHASHES: Final = 300
BLOCK_HEIGHT_GAP: Final = 21_000_000
"""Skipped slots: a real block height trails the slot, and code that confuses the two must fail here."""


class Commitment(IntEnum):
    """The commitment levels."""

    PROCESSED = 0
    CONFIRMED = 1
    FINALIZED = 2


def block_height(slot: int) -> int:
    """Return the height of the block in a slot."""
    return slot - BLOCK_HEIGHT_GAP


class SlotClock:
    """The slot of the wall clock; with `slot_ms=0` only `skip` advances it."""

    def __init__(self, start_slot: int, *, slot_ms: int, now: Callable[[], float] = time.monotonic) -> None:
        self.slot_ms = slot_ms
        self._origin_slot = start_slot
        self._now = now
        self._origin_seconds = now()

    def target(self) -> int:
        """Return the current slot by the clock."""
        if not self.slot_ms:
            return self._origin_slot
        return self._origin_slot + int((self._now() - self._origin_seconds) * 1000 / self.slot_ms)

    def skip(self, slots: int) -> None:
        """Advance by slots."""
        self._origin_slot += slots


class BlockhashQueue:
    """The blockhashes of the last slots. A hash follows from the genesis seed and its slot alone."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._slot_by_hash: OrderedDict[str, int] = OrderedDict()

    def of_slot(self, slot: int) -> str:
        """Return the blockhash of a slot."""
        return str(Hash(hashlib.sha256(self._seed + struct.pack("<Q", slot)).digest()))

    def push(self, slot: int) -> None:
        """Append a slot and remove the oldest beyond the limit."""
        self._slot_by_hash[self.of_slot(slot)] = slot
        if len(self._slot_by_hash) > MAX_RECENT_BLOCKHASHES:
            self._slot_by_hash.popitem(last=False)

    def is_usable(self, blockhash: str, *, at_slot: int) -> bool:
        """Return whether a transaction with this hash may land, as seen from a slot."""
        slot = self._slot_by_hash.get(blockhash)
        return slot is not None and 0 <= at_slot - slot <= MAX_PROCESSING_AGE

    def newest(self, count: int) -> list[tuple[int, Hash]]:
        """List the latest slots with their hashes, newest first."""
        latest = list(self._slot_by_hash.items())[: -count - 1 : -1]
        return [(slot, Hash.from_string(blockhash)) for blockhash, slot in latest]
