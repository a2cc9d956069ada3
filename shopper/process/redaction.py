"""Removing credentials and personal data from texts that a page may have echoed, however it spelled or cut them.

No I/O.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from app.core.redaction import REPLACEMENT, secret_pattern
from app.ports.shopper import PurchaseRequest

_MIN_FRAGMENT = 4
_MIN_TRUNCATED = 40
_MIN_WORD = 3
_MIN_UNMISTAKABLE = 8
_PROSE = re.compile(r"[A-Za-z .,;:'\"()!?-]*")
# Addresses of email; and numbers of cards, phones, houses and orders, however they are grouped.
_PERSONAL = re.compile(r"\S+@\S+|[+(]?\d(?:[ ()•*-]{0,2}\d){3,}")


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
        self._spellings = secret_pattern(self._forms, flags=re.IGNORECASE)
        # No word of our own sentences is one of these.
        unmistakable = [each for each in self._forms if len(each) >= _MIN_UNMISTAKABLE and not _PROSE.fullmatch(each)]
        self._unmistakable = secret_pattern(unmistakable, flags=re.IGNORECASE)

    def redact(self, text: str) -> str:
        """Return a text without the credentials, and without the beginning of one that was cut at the end."""
        # Unprintable characters are dropped first: between its letters they would hide a credential.
        hidden = self._spellings.sub(REPLACEMENT, _plain(text))
        if len(text) < _MIN_TRUNCATED:
            return hidden
        lowered = hidden.lower()
        for form in self._forms:
            for length in range(min(len(form), len(hidden)), _MIN_FRAGMENT - 1, -1):
                if lowered.endswith(form[:length].lower()):
                    return hidden[:-length] + REPLACEMENT
        return hidden

    def redact_message(self, message: str, quoted: Iterable[str]) -> str:
        """Return a sentence of ours without the credentials in the parts that were quoted from a page.

        The rest stays as it is, but for what no sentence of ours contains: the browser's process is not trusted.
        """
        for text in quoted:
            before, found, after = message.rpartition(text) if text else ("", "", "")
            message = f"{before}{self.redact(text)}{after}" if found else message
        return self._unmistakable.sub(REPLACEMENT, _plain(message))


class PersonalDataRedactor:
    """The credentials, the coupon and the recipient of one purchase, and what looks like a number of a person."""

    def __init__(self, request: PurchaseRequest) -> None:
        address = request.address
        parts = (
            address.name, address.zip, address.line1, address.line2, address.city, address.state, address.phone,
            address.email,
        )  # fmt: skip
        words = {word for part in parts if part for word in (part, *re.findall(r"\w+", part))}
        self._names = CredentialRedactor(*(word for word in words if len(word) >= _MIN_WORD))
        self._credentials = CredentialRedactor(request.username, request.password, request.coupon_code)

    def redact(self, text: str) -> str:
        """Return a text without them."""
        return _PERSONAL.sub(REPLACEMENT, self._names.redact(self._credentials.redact(text)))


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())
