"""Removing credentials from texts that a page may have echoed, however it spelled or cut them. No I/O."""

from __future__ import annotations

import re
from urllib.parse import quote, quote_plus

_REDACTED = "…"
_MIN_FRAGMENT = 4
_MIN_TRUNCATED = 40


class CredentialRedactor:
    """The credentials of one purchase."""

    def __init__(self, *secrets: str | None) -> None:
        """Ignore None and empty credentials."""
        spelled = {
            form
            for secret in secrets
            if secret
            for form in (secret, quote(secret), quote_plus(secret), quote(secret, safe=""))
        }
        # The longest first: one may contain another.
        self._forms = sorted({_plain(form) for form in spelled} - {""}, key=len, reverse=True)
        self._spellings = re.compile("|".join(map(re.escape, self._forms)) or r"(?!)", re.IGNORECASE)

    def redact(self, text: str) -> str:
        """Return a text without the credentials, and without the beginning of one that was cut at the end."""
        # Unprintable characters are dropped first: between its letters they would hide a credential.
        hidden = self._spellings.sub(_REDACTED, _plain(text))
        if len(text) < _MIN_TRUNCATED:
            return hidden
        lowered = hidden.lower()
        for form in self._forms:
            for length in range(min(len(form), len(hidden)), _MIN_FRAGMENT - 1, -1):
                if lowered.endswith(form[:length].lower()):
                    return hidden[:-length] + _REDACTED
        return hidden


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())
