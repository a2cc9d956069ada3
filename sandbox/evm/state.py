"""The chain on disk: one compressed file and its predecessor, each written whole.

anvil writes its own `--state` file in place, where a kill can tear it: so the chain is taken over JSON-RPC.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from sandbox.cache import Say, write_atomically
from sandbox.evm.rpc import NodeClient

_ATTEMPTS = 4


def dump(client: NodeClient) -> bytes:
    """Return the whole chain, compressed, as of one block.

    anvil does not stop the world for a dump: a block mined meanwhile would leave its state in the file and
    its receipts out. So a dump counts only if the head stood still, and a busy node is held while it is made.
    """
    for _ in range(_ATTEMPTS):
        content = _dump_if_still(client)
        if content is not None:
            return content
        if client.call("anvil_getAutomine"):
            client.call("evm_setAutomine", False)  # noqa: FBT003 - the method's own parameter
            try:
                content = _dump_if_still(client)
            finally:
                client.call("evm_setAutomine", True)  # noqa: FBT003
                if int(client.call("txpool_status")["pending"], 16):
                    client.call("evm_mine")
            if content is not None:
                return content
    return _dump(client)


def _dump_if_still(client: NodeClient) -> bytes | None:
    before = client.call("eth_blockNumber")
    content = _dump(client)
    return content if client.call("eth_blockNumber") == before else None


def _dump(client: NodeClient) -> bytes:
    return bytes.fromhex(client.call("anvil_dumpState").removeprefix("0x"))


class StateStore:
    """The saved chain in `path`, with the save before it beside it."""

    def __init__(self, path: Path, *, say: Say) -> None:
        """Keep the chain in this file; `say` hears of damage."""
        self.path = path
        self.previous = path.with_name(path.name + ".previous")
        self._say = say

    def save(self, content: bytes) -> None:
        """Keep a dump, and the last good one as its predecessor."""
        if self.path.exists():
            self.previous.unlink(missing_ok=True)
            self.previous.hardlink_to(self.path)
        write_atomically(self.path, content)

    def exists(self) -> bool:
        """Tell whether there is anything to start from."""
        return self.path.exists() or self.previous.exists()

    def candidates(self) -> Iterator[bytes]:
        """Yield the saved chains as anvil's JSON, the newest first, passing over damaged files aloud."""
        for path in (self.path, self.previous):
            try:
                content = gzip.decompress(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, EOFError, zlib.error) as error:
                self._say(f"{path} is damaged ({error}): going back to what was saved before it")
                continue
            yield content

    def set_aside(self) -> None:
        """Move files that nothing can start from out of the way, keeping them for a look."""
        for path in (self.path, self.previous):
            if path.exists():
                aside = path.with_name(path.name + ".damaged")
                path.replace(aside)
                self._say(f"{path} was of no use and is kept as {aside.name}; the chain starts anew")
