"""An outage told twice in the log, when it begins and when it ends, however many calls fell into it."""

from __future__ import annotations

import threading

import structlog

_log = structlog.get_logger(__name__)


class Outage:
    """Remembers whether something outside is failing; usable from many threads."""

    def __init__(self, subject: str, *, name: str) -> None:
        """Take what fails (the start of the event's name) and which one; neither may hold a secret."""
        self._subject = subject
        self._name = name
        self._lock = threading.Lock()
        self._lasts = False

    def begin(self, reason: str) -> None:
        """Note a failure."""
        if self._turn_to(lasts=True):
            _log.warning(f"{self._subject}_failed", name=self._name, reason=reason)

    def end(self) -> None:
        """Note a success."""
        if self._lasts and self._turn_to(lasts=False):
            _log.info(f"{self._subject}_recovered", name=self._name)

    def _turn_to(self, *, lasts: bool) -> bool:
        with self._lock:
            turned = self._lasts is not lasts
            self._lasts = lasts
            return turned
