from __future__ import annotations

import runpy
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]


def test_a_caller_who_stops_reading_holds_a_thread_for_a_minute_at_most() -> None:
    settings = runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings["when_ready"](SimpleNamespace(LISTENERS=[SimpleNamespace(sock=listening)]))
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            inherited = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
            assert struct.unpack("ll", inherited) == (60, 0)
