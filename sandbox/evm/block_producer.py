"""Periodic mining and saving of a running chain.

A chain that mines every second grows by 1.7 KB a block in memory and on disk. So blocks follow the clock only during
activity, and an idle chain gets a rare block that keeps its feeds fresh. The node reports activity; nothing polls.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from sandbox.evm import state
from sandbox.evm.rpc import NodeClient, NodeDown, NodeError

SETTLING_BLOCKS = 16
"""Blocks after the last activity, enough to finalise deposits."""
IDLE_BLOCK_SECONDS = 30
_MAX_SAVE_FRACTION = 10  # saving takes at most a tenth of the time, however large the chain
_EVENTS = ("newHeads", "newPendingTransactions")
_PAUSE_SECONDS = 0.1
"""The events of this time are handled together."""
_CLOSE_SECONDS = 1.0


class BlockProducer:
    """A thread that mines and saves one node until it is stopped."""

    def __init__(
        self,
        client: NodeClient,
        *,
        block_time: float | None,
        mining_lock: threading.Lock,
        store: state.StateStore | None,
        state_interval: float,
        on_activity: Callable[[], None] | None = None,
    ) -> None:
        """Mine every `block_time` seconds during activity (None: never), and save to `store`, if any.

        `on_activity` is called at the start and after each activity; it must not raise.
        """
        self._client = client
        self._block_time = block_time
        self._mining_lock = mining_lock
        self._store = store
        self._state_interval = state_interval
        self._on_activity = on_activity
        self._saved_head: str | None = None
        self._next_save = 0.0
        self._known_height = 0
        self._mine_until = 0
        self._stopping = threading.Event()
        self._events: ClientConnection | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if there is anything to do."""
        if self._block_time is None and self._store is None:
            return
        self._thread = threading.Thread(target=self._run, name=f"upkeep {self._client.url}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop without a last save."""
        self._stopping.set()
        if self._events is not None:
            self._events.close()  # ends the wait for the next event
        if self._thread is not None:
            self._thread.join()

    def save(self) -> None:
        """Save now, unless nothing happened since the last time. Raises: NodeDown, NodeError."""
        if self._store is None:
            return
        head = self._client.call("eth_getBlockByNumber", "latest", False)["hash"]  # noqa: FBT003 - a JSON-RPC parameter
        if head != self._saved_head:
            started = time.monotonic()
            self._store.store(state.dump(self._client, self._mining_lock))
            self._saved_head = head
            now = time.monotonic()
            self._next_save = now + max(self._state_interval, _MAX_SAVE_FRACTION * (now - started))

    def _run(self) -> None:
        url = self._client.url.replace("http", "ws", 1)
        while not self._stopping.is_set():
            try:
                with connect(url, proxy=None, ping_interval=None, close_timeout=_CLOSE_SECONDS) as events:
                    self._events = events
                    for number, kind in enumerate(_EVENTS):
                        request = {"jsonrpc": "2.0", "id": number, "method": "eth_subscribe", "params": [kind]}
                        events.send(json.dumps(request))
                    self._follow(events)
            except (NodeDown, NodeError, OSError, WebSocketException):
                # The node is down or restarting, or the disk is full: try again.
                self._known_height = 0
                self._stopping.wait(self._state_interval)

    def _follow(self, events: ClientConnection) -> None:
        next_block, is_saved = 0.0, False
        while not self._stopping.is_set():
            is_settling = self._known_height < self._mine_until
            if self._block_time is not None and (not is_settling or time.monotonic() >= next_block):
                next_block = time.monotonic() + self._mine_when_due(self._block_time)
            if self._on_activity is not None:
                self._on_activity()
            if not is_saved and time.monotonic() >= self._next_save:
                self.save()
                is_saved = True
            next_time = min(
                next_block if self._block_time is not None else math.inf,
                math.inf if is_saved or self._store is None else self._next_save,
            )
            if _await_event(events, None if next_time == math.inf else max(0, next_time - time.monotonic())):
                is_saved = False
                self._stopping.wait(min(_PAUSE_SECONDS, self._block_time or _PAUSE_SECONDS))
                while _await_event(events, 0):
                    pass

    def _mine_when_due(self, block_time: float) -> float:
        """Mine a block if one is due, and return the seconds until the next one without activity."""
        block = self._client.call("eth_getBlockByNumber", "latest", False)  # noqa: FBT003
        height = int(block["number"], 16)
        waiting = int(self._client.call("txpool_status")["pending"], 16)
        if height != self._known_height or waiting:
            self._mine_until = height + SETTLING_BLOCKS
        idle_seconds = time.time() - int(block["timestamp"], 16)
        if height < self._mine_until or idle_seconds >= IDLE_BLOCK_SECONDS:
            with self._mining_lock:
                self._client.call("evm_mine")
            height += 1
            idle_seconds = 0
        self._known_height = height
        return block_time if height < self._mine_until else max(block_time, IDLE_BLOCK_SECONDS - idle_seconds)


def _await_event(events: ClientConnection, seconds: float | None) -> bool:
    """Return whether an event came within this time (None: wait forever)."""
    with contextlib.suppress(TimeoutError):
        events.recv(seconds)
        return True
    return False
