"""The chain on disk: one compressed file and its predecessor, each written atomically.

anvil writes its own `--state` file in place, where a kill can corrupt it; so the chain is read over JSON-RPC.
"""

import gzip
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from sandbox.cache import LineLogger, write_atomically
from sandbox.evm.mining import automine_paused
from sandbox.evm.rpc import NodeClient

_ATTEMPTS = 4


def dump(client: NodeClient, mining_lock: threading.Lock) -> bytes:
    """Return the whole chain, compressed, as of one block.

    anvil keeps mining during a dump: the file would contain the state of a later block without its receipts. So mining
    is paused, and a dump is valid only if no block that was being mined has changed the head.
    """
    with automine_paused(client, mining_lock):
        for _ in range(_ATTEMPTS):
            content = _dump_if_still(client)
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
    """The saved chain in `path`, with its predecessor in the same folder."""

    def __init__(self, path: Path, *, log_line: LineLogger) -> None:
        """`log_line` gets a line for each damaged file."""
        self.path = path
        self.previous = path.with_name(path.name + ".previous")
        self._log_line = log_line

    def store(self, content: bytes) -> None:
        """Store a dump, and keep the last good one as its predecessor."""
        if self.path.exists():
            self.previous.unlink(missing_ok=True)
            self.previous.hardlink_to(self.path)
        write_atomically(self.path, content)

    def exists(self) -> bool:
        """Return whether there is a saved chain."""
        return self.path.exists() or self.previous.exists()

    def candidates(self) -> Iterator[bytes]:
        """Yield the saved chains as anvil's JSON, newest first; damaged files are reported and skipped."""
        for path in (self.path, self.previous):
            try:
                content = gzip.decompress(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, EOFError, zlib.error) as error:
                self._log_line(f"{path} is damaged ({error}): using the previous one")
                continue
            yield content

    def quarantine(self) -> None:
        """Rename the files from which no node starts, and keep them for inspection."""
        for path in (self.path, self.previous):
            if path.exists():
                aside = path.with_name(path.name + ".damaged")
                path.replace(aside)
                self._log_line(f"{path} is unusable and is kept as {aside.name}; a new chain is started")
