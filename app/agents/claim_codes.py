"""Claim codes: generate, normalise and hash. No I/O.

24^4 letters times 10^4 digits are 3.3 * 10^9 codes: few enough to be guessed without rate limits, and to be found
from a plain digest, hence the pepper.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import unicodedata
from collections.abc import Sequence
from datetime import timedelta

# Without I and O, which look like 1 and 0.
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
CODE_LIFETIME = timedelta(seconds=315_360_000)

_DIGITS = "0123456789"
_CODE = re.compile(rf"([{CODE_LETTERS}]{{4}})([0-9]{{4}})", re.ASCII)
_MAX_INPUT_LENGTH = 64
_MINUS = "\u2212"


def generate() -> str:
    """Return a new random code such as `KHTM-4821`."""
    letters = "".join(secrets.choice(CODE_LETTERS) for _ in range(4))
    digits = "".join(secrets.choice(_DIGITS) for _ in range(4))
    return f"{letters}-{digits}"


def normalise(text: str) -> str | None:
    """Return a typed code in its canonical form, whatever its case, spaces and dashes; None when it is malformed."""
    if len(text) > _MAX_INPUT_LENGTH:
        return None
    folded = unicodedata.normalize("NFKC", text).upper()
    found = _CODE.fullmatch("".join(letter for letter in folded if not _is_separator(letter)))
    return f"{found[1]}-{found[2]}" if found else None


def keyed_hash(code: str, pepper: bytes) -> str:
    """Return the HMAC-SHA256 of a normalised code in hexadecimal; the database stores nothing else of it."""
    return hmac.new(pepper, code.encode(), hashlib.sha256).hexdigest()


def keyed_hashes(code: str, peppers: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return the hashes that a code may be stored as: one per pepper, newest first."""
    return [keyed_hash(code, pepper) for _, pepper in peppers]


def _is_separator(char: str) -> bool:
    # Spaces, punctuation with all dashes, invisible characters of pasted text, and the minus sign.
    return unicodedata.category(char)[0] in "ZP" or unicodedata.category(char) in ("Cc", "Cf") or char == _MINUS
