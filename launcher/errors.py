"""What ends the launcher early: one line for a person, and the exit status."""

from __future__ import annotations


class LauncherError(Exception):
    """The service cannot be started as asked; the message is one line that says what to do."""

    def __init__(self, message: str, *, status: int = 1) -> None:
        """Keep the line and the exit status: 1 for this machine's state, 2 for what was asked."""
        super().__init__(message)
        self.status = status
