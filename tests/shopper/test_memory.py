"""The memory of a purchase, without a browser."""

from __future__ import annotations

import json
import time

from app.adapters import child_process
from shopper.process import protocol

# A process like the browser's, whose child takes memory as a page can.
_CODE = """
import subprocess, sys, time
from shopper.process import memory
taking = "import time; kept = bytearray({taken}); kept[::4096] = b'x' * len(kept[::4096]); time.sleep(100)"
subprocess.Popen([sys.executable, "-c", taking])
memory.watch(sys.stdout.buffer, {limit})
time.sleep(100)
"""


def test_a_page_that_takes_too_much_memory_ends_the_purchase_with_its_reason() -> None:
    code = _CODE.format(taken=192 * 1024**2, limit=128 * 1024**2)
    environment = {"PYTHONPATH": str(child_process.ROOT)}
    with child_process.run("-c", code, environment=environment, max_line=protocol.MAX_LINE) as child:
        message = json.loads(child.read_line(deadline=time.monotonic() + 60))
        assert (message["kind"], message["code"]) == ("failed", "browser_error")
        assert "memory than a purchase may use (128 MiB)" in message["message"]
