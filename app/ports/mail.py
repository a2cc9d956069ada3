"""E-mail: one message to one recipient."""

from __future__ import annotations

from typing import Protocol


class Mailer(Protocol):
    """Hands messages to a mail server."""

    def send(self, recipient: str, *, subject: str, text: str, message_id: str) -> None:
        """Send a message; a repeated one has the same `message_id`.

        Raises: Rejected when the server refuses it; Unreachable when nothing was sent; OutcomeUnknown.
        """
