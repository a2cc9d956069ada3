"""One launcher for each var/ folder: its lock, its record, and the end of what a killed one left.

The lock is the system's (`flock`), so it is gone with its holder however that ended; the record beside it
says which processes were started, because those may outlive a launcher that was killed.
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

_REAP_GRACE_SECONDS = 5.0


class Instance:
    """The hold of this process on a var/ folder."""

    def __init__(self, folder: Path) -> None:
        """Name the folder, which must exist; `acquire` takes it."""
        self.mark = secrets.token_hex(16)
        self._lock_path = folder / "launcher.lock"
        self._record_path = folder / "launcher.json"
        self._lock: int | None = None
        self._record: dict[str, Any] = {"mark": self.mark, "address": None, "children": [], "settings": {}}

    def acquire(self) -> list[int]:
        """Take the folder and end what a killed launcher left in it; return the ids of what was ended.

        Raises: LauncherError with the address of the launcher that holds it.
        """
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            address = read_record(self._record_path).get("address")
            where = f" on {address}" if address else ""
            raise LauncherError(
                f"Already running{where}; stop that one first (Ctrl-C where it runs)."
            ) from None
        self._lock = lock
        left = read_record(self._record_path)
        reaped = _end_left_behind(left)
        self._write()
        return reaped

    def note(self, *, address: str | None = None, settings: dict[str, str] | None = None) -> None:
        """Write down where the service answers, and the settings that `run_command` needs (no secrets)."""
        if address is not None:
            self._record["address"] = address
        if settings is not None:
            self._record["settings"] = settings
        self._write()

    def note_child(self, pid: int) -> None:
        """Write down a started process, with the start time that tells it from a later one of the same id."""
        self._record["children"].append([pid, processes.start_time(pid)])
        self._record["children"] = [
            [known, started]
            for known, started in self._record["children"]
            if processes.start_time(known) == started
        ]
        self._write()

    def release(self) -> None:
        """Give the folder back; the record goes first, so that nobody reads of a launcher that has ended."""
        self._record_path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self) -> None:
        temporary = self._record_path.with_suffix(".new")
        temporary.write_text(json.dumps(self._record))
        temporary.replace(self._record_path)


def read_record(path: Path) -> dict[str, Any]:
    """Return what a launcher wrote down; empty where none did, or it was cut short."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _end_left_behind(record: dict[str, Any]) -> list[int]:
    mark = record.get("mark")
    known = [(int(pid), started) for pid, started in record.get("children", []) if started is not None]

    def ours() -> set[int]:
        written_down = {pid for pid, started in known if processes.start_time(pid) == started}
        return written_down | (processes.marked(mark) if isinstance(mark, str) and mark else set())

    found = sorted(ours())
    processes.end(ours, grace_seconds=_REAP_GRACE_SECONDS)
    return found
