"""The memory of a purchase: pages that take too much end it."""

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.process import protocol

_INTERVAL_SECONDS = 1
_FIELD = re.compile(r"^(PPid|RssAnon|RssShmem):\s*(\d+)", re.MULTILINE)


def watch(writer: BinaryIO, max_bytes: int) -> None:
    """Start a thread that ends this process, with a message, once it and its descendants use more memory.

    The parent process then ends the browser.
    """
    threading.Thread(target=_watch, args=(writer, max_bytes), daemon=True).start()


def used_bytes(root: int) -> int:
    """Return the memory of a process and its descendants, without files; 0 on systems other than Linux."""
    table: dict[int, dict[str, int]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            fields = _FIELD.findall(status.read_text(errors="replace"))
            table[int(status.parent.name)] = {name: int(value) for name, value in fields}
    family = {root}
    while more := {pid for pid, fields in table.items() if fields.get("PPid") in family} - family:
        family |= more
    shown = [table.get(pid, {}) for pid in family]
    return sum(fields.get("RssAnon", 0) + fields.get("RssShmem", 0) for fields in shown) * 1024


def _watch(writer: BinaryIO, max_bytes: int) -> None:
    while used_bytes(os.getpid()) <= max_bytes:
        time.sleep(_INTERVAL_SECONDS)
    message = f"The shop's pages need more memory than a purchase may use ({max_bytes >> 20} MiB)."
    failure = PurchaseFailed(FailureCode.BROWSER_ERROR, message)
    with suppress(protocol.PeerClosed):
        protocol.write(writer, "failed", **protocol.failure_to_json(failure))
    os._exit(1)
