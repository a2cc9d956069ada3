"""Replacement of secrets in texts that an operator reads or shares."""

from __future__ import annotations

from collections.abc import Callable, Collection


def redaction(secrets: Collection[str]) -> Callable[[str], str]:
    """Return a function that replaces secrets in a text, whatever contains them."""
    longest_first = sorted(secrets, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, "…")
        return text

    return redact
