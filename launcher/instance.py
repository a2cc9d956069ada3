"""One launcher per var/ folder: its lock, its record, and the cleanup after a killed launcher.

The lock is `flock`, which the system releases when the process ends. The record next to it lists the processes that
were started, because they may outlive a launcher that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Any

from launcher import processes
from launcher.errors import LauncherError
from launcher.sandbox_secrets import write_privately

_REAP_GRACE_SECONDS = 5.0


class Instance:
    """This process's lock on a var/ folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` must exist; `acquire` locks it."""
        self.marker = secrets.token_hex(16)
        self._lock_path = folder / "launcher.lock"
        self._record_path = folder / "launcher.json"
        self._lock: int | None = None
        self._record: dict[str, Any] = {"mark": self.marker, "address": None, "children": [], "settings": {}}

    def acquire(self) -> list[int]:
        """Lock the folder and terminate the processes of a killed launcher; return their ids.

        Raises: LauncherError with the address of the launcher that holds it.
        """
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            address = read_record(self._record_path).get("address")
            location = f" on {address}" if address else ""
            raise LauncherError(f"Already running{location}; stop that one first (Ctrl-C where it runs).") from None
        self._lock = lock
        previous = read_record(self._record_path)
        reaped = terminate_leftovers(previous)
        self._write()
        return reaped

    def record_address(self, *, address: str | None = None, settings: dict[str, str] | None = None) -> None:
        """Record the address of the service, and the settings that `run_command` needs (the file is private)."""
        if address is not None:
            self._record["address"] = address
        if settings is not None:
            self._record["settings"] = settings
        self._write()

    def record_child(self, pid: int) -> None:
        """Record a started process with its start time, which distinguishes it from a later one with the same id."""
        self._record["children"].append([pid, processes.start_time(pid)])
        self._record["children"] = [
            [known, started] for known, started in self._record["children"] if processes.start_time(known) == started
        ]
        self._write()

    def release(self) -> None:
        """Release the folder. The record is deleted first, so that it never describes a launcher that has ended."""
        self._record_path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self) -> None:
        write_privately(self._record_path, json.dumps(self._record))


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a launcher; empty if it is missing or incomplete."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def terminate_leftovers(record: dict[str, Any]) -> list[int]:
    """Terminate the recorded processes of a previous run that are still alive; return their ids."""
    marker = record.get("mark")
    recorded = [(int(pid), started) for pid, started in record.get("children", []) if started is not None]
    sessions = {pid for pid, started in recorded if processes.start_time(pid) == started}

    def leftover_pids() -> set[int]:
        written_down = {pid for pid, started in recorded if processes.start_time(pid) == started}
        return (
            written_down
            | processes.pids_in_sessions(sessions)
            | (processes.pids_with_marker(marker) if isinstance(marker, str) and marker else set())
        )

    found = sorted(leftover_pids())
    processes.terminate(leftover_pids, grace_seconds=_REAP_GRACE_SECONDS)
    return found
