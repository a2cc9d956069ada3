"""Replacement of secrets in texts that came from outside: pages, and the responses of other services.

A gap inside of a word spells what is missing. So a secret shorter than MIN_ANYWHERE is replaced only where it stands as
a word of its own, and one that is an ordinary word of sentences never.
"""

import re
from collections.abc import Callable, Collection

REPLACEMENT = "…"
_KEY = re.compile(r"\b(ak|gw|at)_[A-Za-z0-9_-]{16,}")
MIN_ANYWHERE = 6
_ORDINARY = frozenset(
    "a about all an and are as at be but by can could do for from has have he her his i if in is it its me my no not "  # noqa: SIM905
    "of on one or our out so than that the their they this to up us was we were what will with you your".split()
)


def secret_pattern(secrets: Collection[str], *, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern of the places where secrets are replaced in a text from outside."""
    longest_first = sorted(filter(None, secrets), key=len, reverse=True)
    words = [
        rf"(?<![^\W_]){re.escape(each)}(?![^\W_])" if len(each) < MIN_ANYWHERE else re.escape(each)
        for each in longest_first
        if each.lower() not in _ORDINARY
    ]
    return re.compile("|".join(words) or r"(?!)", flags)


def redaction(secrets: Collection[str]) -> Callable[[str], str]:
    pattern = secret_pattern(secrets)
    return lambda text: pattern.sub(REPLACEMENT, text)


def redact_keys(text: str) -> str:
    """Return a text without keys of this service."""
    return _KEY.sub(r"\1_…", text)
