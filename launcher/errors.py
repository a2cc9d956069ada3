"""The error that ends the launcher, with its exit status."""

from __future__ import annotations


class LauncherError(Exception):
    """The service cannot be started as asked; the message is one line that says what to do."""

    def __init__(self, message: str, *, status: int = 1) -> None:
        """`status` is the exit status: 1 for the state of this machine, 2 for a wrong request."""
        super().__init__(message)
        self.status = status
