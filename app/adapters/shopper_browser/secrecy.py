"""Taking credentials out of texts that a page may have echoed, however it has spelled or cut them. Pure."""

from __future__ import annotations

import re
from urllib.parse import quote, quote_plus

_HIDDEN = "…"
_SHORTEST_PIECE = 4
_SHORTEST_CUT = 40


class Secrets:
    """The credentials of one errand."""

    def __init__(self, *secrets: str | None) -> None:
        """Take them; None and empty ones are none."""
        spelled = {
            form
            for secret in secrets
            if secret
            for form in (secret, quote(secret), quote_plus(secret), quote(secret, safe=""))
        }
        # The longest first: one may be a part of the other.
        self._forms = sorted({_plain(form) for form in spelled} - {""}, key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, self._forms)) or r"(?!)", re.IGNORECASE)

    def hide(self, text: str) -> str:
        """Return a text without the credentials, and without the beginning of one at the end, where it was cut."""
        # What is not printed is dropped first: it could stand between their letters, and would be dropped later.
        hidden = self._whole.sub(_HIDDEN, _plain(text))
        if len(text) < _SHORTEST_CUT:
            return hidden
        lowered = hidden.lower()
        for form in self._forms:
            for length in range(min(len(form), len(hidden)), _SHORTEST_PIECE - 1, -1):
                if lowered.endswith(form[:length].lower()):
                    return hidden[:-length] + _HIDDEN
        return hidden


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())
