"""Let another node lead when the leader's disk is nearly full: `room.py NAME LISTEN ADDRESS FOLDER`, on data hosts.

Patroni leaves a leader alone whose PostgreSQL runs. This ends PostgreSQL as a crash would, and Patroni promotes a
replica: only where all that it may choose have the room that a leader needs, and one twice as much, so that roles do
not go back and forth. A switchover would begin with a checkpoint, which needs room: on a full disk PostgreSQL 18 could
neither continue nor shut down.
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
_LOW_READINGS = 3
"""So many in a row, a second apart: a temporary file that is soon deleted is no reason."""
_PAUSE_SECONDS = 60.0
_UNKNOWN = (OSError, http.client.HTTPException, LookupError, ValueError)


def main(name: str, listen: str, address: str, folder: Path) -> None:
    """Report how much may be written on this host, and check once a second whether it leads without enough room."""
    database = folder / "postgres"

    class Room(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n%d" % free_bytes(database))

    threading.Thread(target=ThreadingHTTPServer((listen, PORT), Room).serve_forever, daemon=True).start()
    low, not_before = 0, 0.0
    while True:
        time.sleep(1)
        # Without Patroni, a replica or its answer nothing is known, and nothing happens.
        with contextlib.suppress(*_UNKNOWN):
            low = low + 1 if free_bytes(database) < NEEDED_BYTES else 0
            if low < _LOW_READINGS or time.monotonic() < not_before:
                continue
            if another_should_lead(name, json.loads(_read(f"http://{address}:8008/cluster")), room_of):
                not_before = time.monotonic() + _PAUSE_SECONDS
                end(database)


def free_bytes(folder: Path) -> int:
    """Return how much may still be written. Raises: OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def end(database: Path) -> None:
    """End the PostgreSQL that runs in a folder, as a crash would. Raises: OSError, ValueError, IndexError."""
    pid = int((database / "postmaster.pid").read_text().split()[0])
    # The file may be older than the process that has its number now.
    if pid > 0 and Path(f"/proc/{pid}/cwd").samefile(database):
        os.kill(pid, signal.SIGQUIT)
        print("no room to lead: PostgreSQL was ended", flush=True)  # noqa: T201


def room_of(host: str) -> int:
    """Return how much may still be written on another data host, 0 if it does not answer."""
    with contextlib.suppress(*_UNKNOWN):
        return int(_read(f"http://{host}:{PORT}/"))
    return 0


def another_should_lead(name: str, cluster: Mapping[str, Any], room: Callable[[str], int]) -> bool:
    """Return whether a host leads, and replicas could that confirm commits and have room; `cluster` is Patroni's.

    Patroni chooses among them by their WAL, not by their room: each needs enough of it, and one twice as much.
    """
    # While it is paused, Patroni promotes nothing.
    leaders = [each["name"] for each in cluster["members"] if (each["role"], each["state"]) == ("leader", "running")]
    if cluster.get("pause") or leaders != [name]:
        return False
    rooms = [room(each["host"]) for each in cluster["members"] if _can_lead(each)]
    return bool(rooms) and min(rooms) >= NEEDED_BYTES and max(rooms) >= 2 * NEEDED_BYTES


def _can_lead(member: Mapping[str, Any]) -> bool:
    confirms = member["role"] in {"sync_standby", "quorum_standby"} and member["state"] == "streaming"
    lag = member.get("lag")
    is_near = isinstance(lag, int) and lag <= MAX_LAG_BYTES
    return confirms and is_near and not member.get("tags", {}).get("nofailover")


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - of the data hosts
        found: bytes = answer.read()
    return found


if __name__ == "__main__":
    own_name, own_listen, own_address, own_folder = sys.argv[1:]
    main(own_name, own_listen, own_address, Path(own_folder))
