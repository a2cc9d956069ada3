"""The `Prefer` request header (RFC 7240): `respond-async` and `wait=N`."""

from __future__ import annotations

import re
from decimal import Decimal

from flask import request

PREFERENCE_APPLIED = "Preference-Applied"
NO_WAIT = Decimal(0)
_MAX_WAIT_SECONDS = 25


def wait_seconds() -> Decimal | None:
    """Return how long the client prefers to wait for an outcome: 0 to 25 seconds, None without a valid preference."""
    preference = ",".join(request.headers.getlist("Prefer"))
    for part in preference.split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "respond-async":
            return Decimal(0)
        if name.strip().lower() == "wait" and re.fullmatch(r"[0-9]{1,6}", value.strip(), re.ASCII):
            return Decimal(min(int(value), _MAX_WAIT_SECONDS))
    return None
