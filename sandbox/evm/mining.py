"""Control of who mines: anvil may prepare a block while the one before is still being mined.

A transaction that is in the pool then is included in both. The second inclusion fails for its nonce, but a deposit
from Ethereum has none: it would be executed twice, and anvil could not return the block any more.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.evm.rpc import NodeClient


@contextmanager
def automine_paused(client: NodeClient, lock: threading.Lock) -> Iterator[bool]:
    """Hold new transactions in the pool, and yield False if they were held already. Raises: NodeDown, NodeError.

    `lock` excludes other threads that mine. anvil mines what waits in the pool when mining resumes.
    """
    with lock:
        was_on: bool = client.call("anvil_getAutomine")
        if was_on:
            client.call("evm_setAutomine", False)  # noqa: FBT003 - a JSON-RPC parameter
        try:
            yield was_on
        finally:
            if was_on:
                client.call("evm_setAutomine", True)  # noqa: FBT003
