"""What a running chain needs from outside: blocks that advance by themselves, and saving.

A chain that mines every second for ever grows by 1.7 KB a block in memory and on disk, idle or not. So blocks
follow the clock only while something goes on, and an idle chain gets a rare one that keeps its feeds fresh.
"""

from __future__ import annotations

import threading
import time

from sandbox.evm import state
from sandbox.evm.rpc import NodeClient, NodeDown, NodeError

SETTLING_BLOCKS = 16
"""Blocks after the last activity: deposits become deep enough and the `finalized` tag passes them."""
IDLE_BLOCK_SECONDS = 30
_SAVING_SHARE = 10  # saving takes at most a tenth of the time, however large the chain


class Upkeep:
    """A thread that paces and saves one node until it is stopped."""

    def __init__(
        self,
        client: NodeClient,
        *,
        block_time: float | None,
        store: state.StateStore | None,
        state_interval: float,
    ) -> None:
        """Mine every `block_time` seconds during activity (None: never), and save to `store`, if any."""
        self._client = client
        self._block_time = block_time
        self._store = store
        self._state_interval = state_interval
        self._saved_head: str | None = None
        self._next_save = 0.0
        self._known_height = 0
        self._mine_until = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if there is anything to do."""
        if self._block_time is None and self._store is None:
            return
        self._thread = threading.Thread(target=self._run, name=f"upkeep {self._client.url}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End without a last save."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def save(self) -> None:
        """Save now, unless nothing happened since the last time. Raises: NodeDown, NodeError."""
        if self._store is None:
            return
        head = self._client.call("eth_getBlockByNumber", "latest", False)["hash"]  # noqa: FBT003 - the method's own
        if head != self._saved_head:
            started = time.monotonic()
            self._store.save(state.dump(self._client))
            self._saved_head = head
            now = time.monotonic()
            self._next_save = now + max(self._state_interval, _SAVING_SHARE * (now - started))

    def _run(self) -> None:
        tick = min(self._block_time or self._state_interval, self._state_interval)
        while not self._stopping.wait(tick):
            try:
                if self._block_time is not None:
                    self._pace()
                if time.monotonic() >= self._next_save:
                    self.save()
            except (NodeDown, NodeError, OSError):
                self._known_height = 0  # the node is down or coming back, or the disk is full: try again

    def _pace(self) -> None:
        block = self._client.call("eth_getBlockByNumber", "latest", False)  # noqa: FBT003
        height = int(block["number"], 16)
        waiting = int(self._client.call("txpool_status")["pending"], 16)
        if height != self._known_height or waiting:
            self._mine_until = height + SETTLING_BLOCKS
        idle_seconds = time.time() - int(block["timestamp"], 16)
        if height < self._mine_until or idle_seconds >= IDLE_BLOCK_SECONDS:
            self._client.call("evm_mine")
            height += 1
        self._known_height = height
