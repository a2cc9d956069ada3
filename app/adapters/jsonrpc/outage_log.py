"""Outages are logged twice, when they begin and when they end, however many calls fail in between."""

from __future__ import annotations

import threading

import structlog

_log = structlog.get_logger(__name__)


class OutageLog:
    """Remembers whether an outside system is failing; usable from many threads."""

    def __init__(self, subject: str, *, name: str) -> None:
        """Store what fails (the start of the event's name) and which one; neither may contain a secret."""
        self._subject = subject
        self._name = name
        self._lock = threading.Lock()
        self._is_active = False

    def begin(self, reason: str) -> None:
        if self._set_active(is_active=True):
            _log.warning(f"{self._subject}_failed", name=self._name, reason=reason)

    def end(self) -> None:
        if self._is_active and self._set_active(is_active=False):
            _log.info(f"{self._subject}_recovered", name=self._name)

    def _set_active(self, *, is_active: bool) -> bool:
        with self._lock:
            has_changed = self._is_active is not is_active
            self._is_active = is_active
            return has_changed
