"""Let another node lead when the leader's disk is nearly full: `room.py NAME LISTEN ADDRESS FOLDER`, on data hosts.

Patroni leaves a leader alone whose PostgreSQL runs. This ends PostgreSQL as a crash would, and Patroni promotes a
replica: only where one that confirms commits has twice the room that a leader needs, so that roles do not go back and
forth. A switchover would begin with a checkpoint, which needs room: on a full disk PostgreSQL 18 neither ran nor ended.
"""

import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NEEDED_BYTES = int(os.environ.get("LEADER_ROOM_MB") or 256) * 2**20
MAX_LAG_BYTES = 2**20
"""`maximum_lag_on_failover` of Patroni."""
PORT = 8009
_PAUSE_SECONDS = 60.0


def main(name: str, listen: str, address: str, folder: Path) -> None:
    """Report how much may be written on this host, and check once a second whether it leads without enough room."""

    class Room(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n%d" % free_bytes(folder))

    threading.Thread(target=ThreadingHTTPServer((listen, PORT), Room).serve_forever, daemon=True).start()
    while True:
        time.sleep(1)
        # Without Patroni, a replica or its answer nothing is known, and nothing happens.
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            if free_bytes(folder) >= NEEDED_BYTES:
                continue
            if another_should_lead(name, json.loads(_read(f"http://{address}:8008/cluster")), room_of):
                os.kill(int((folder / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
                print("no room to lead: PostgreSQL was ended", flush=True)  # noqa: T201
                time.sleep(_PAUSE_SECONDS)


def free_bytes(folder: Path) -> int:
    """Return how much may still be written."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def room_of(host: str) -> int:
    """Return how much may still be written on another data host, 0 if it does not answer."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return int(_read(f"http://{host}:{PORT}/"))
    return 0


def another_should_lead(name: str, cluster: Mapping[str, Any], room: Callable[[str], int]) -> bool:
    """Return whether a host leads, and a replica could that confirms commits and has room; `cluster` is Patroni's."""
    # While it is paused, Patroni promotes nothing.
    if cluster.get("pause") or (name, "leader", "running") not in {_state(each) for each in cluster["members"]}:
        return False
    others = [each for each in cluster["members"] if each["role"] in {"sync_standby", "quorum_standby"}]
    ready = [each for each in others if each["state"] == "streaming" and int(each["lag"]) <= MAX_LAG_BYTES]
    return any(room(each["host"]) >= 2 * NEEDED_BYTES for each in ready)


def _state(member: Mapping[str, Any]) -> tuple[str, str, str]:
    return member["name"], member["role"], member["state"]


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - of the data hosts
        found: bytes = answer.read()
    return found


if __name__ == "__main__":
    own_name, own_listen, own_address, own_folder = sys.argv[1:]
    main(own_name, own_listen, own_address, Path(own_folder))
