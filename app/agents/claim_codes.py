"""The form of claim codes: drawn, read back as people type them, turned into what the database keeps. Pure.

24 letters to the power of 4 times 10 digits to the power of 4 are 3.3 * 10^9 codes: few enough to be guessed
without limits, and to be found from a plain digest, hence the pepper.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import unicodedata
from collections.abc import Sequence
from datetime import timedelta

# Without I and O, which people read as 1 and 0.
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
VALID_FOR = timedelta(seconds=315_360_000)

_DIGITS = "0123456789"
_CODE = re.compile(rf"([{LETTERS}]{{4}})([0-9]{{4}})", re.ASCII)
_MAX_TYPED = 64
_MINUS = "\u2212"


def draw() -> str:
    """Return a fresh random code such as `KHTM-4821`."""
    letters = "".join(secrets.choice(LETTERS) for _ in range(4))
    digits = "".join(secrets.choice(_DIGITS) for _ in range(4))
    return f"{letters}-{digits}"


def normalise(typed: str) -> str | None:
    """Return the code that a person meant, whatever its case, spaces and dashes; None when it is no code."""
    if len(typed) > _MAX_TYPED:
        return None
    folded = unicodedata.normalize("NFKC", typed).upper()
    found = _CODE.fullmatch("".join(letter for letter in folded if not _is_filler(letter)))
    return f"{found[1]}-{found[2]}" if found else None


def keyed_hash(code: str, pepper: bytes) -> str:
    """Return the HMAC-SHA256 of a normalised code in hexadecimal: all that the database knows of it."""
    return hmac.new(pepper, code.encode(), hashlib.sha256).hexdigest()


def keyed_hashes(code: str, peppers: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return what a code may be stored as: one hash per pepper, the newest first."""
    return [keyed_hash(code, pepper) for _, pepper in peppers]


def _is_filler(letter: str) -> bool:
    # Spaces, punctuation (every dash among it), invisible characters of pasted text, and the minus sign.
    return (
        unicodedata.category(letter)[0] in "ZP"
        or unicodedata.category(letter) in ("Cc", "Cf")
        or letter == _MINUS
    )
