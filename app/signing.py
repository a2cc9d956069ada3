"""Receipts: statements that this service signs, and that others verify without asking it (JWS, RFC 7515, ES256).

`typ` says what is stated, so that no statement passes for another kind. `kid` is a DID URL of the service's host.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet

from app.core import clock
from app.core.setting_types import keys
from app.core.strict_json import parse_response
from app.state import app_state

_MAX_LENGTH, _MAX_HEADER_LENGTH = 16_384, 4096
_ALGORITHM = "ES256"


class Statement(StrEnum):
    """What a receipt states: its `typ`."""

    OFFER = "x402-offer+jws"
    PAYMENT = "x402-receipt+jws"
    RECORD = "purser-record+jws"
    REFUSAL = "purser-refusal+jws"


def header(receipt: str | None) -> dict[str, str]:
    """Return the header with a receipt, unless that is longer than what proxies and clients accept."""
    return {"X-Receipt": receipt} if receipt and len(receipt) <= _MAX_HEADER_LENGTH else {}


def did() -> str:
    """Return the service's identifier (`did:web`), which its domain proves."""
    return "did:web:" + urlsplit(app_state().settings.public_url).netloc.replace(":", "%3A")


def public_keys() -> list[dict[str, Any]]:
    return [dict(each.as_dict(private=False)) for each in _keys()]


def sign(statement: Statement, payload: Mapping[str, Any]) -> str | None:
    """Sign what others than its reader will see; None without a key."""
    if not _keys():
        return None
    protected = {"alg": _ALGORITHM, "kid": _keys()[0].kid, "typ": statement.value}
    # For ASCII as RFC 8785 has it, which x402 asks for.
    return jws.serialize_compact(protected, json.dumps(payload, sort_keys=True, separators=(",", ":")), _keys()[0])


def sign_own(statement: Statement, **members: Any) -> str | None:
    """Sign what this service has recorded or refused, with who signs it and when."""
    return sign(statement, {"iss": app_state().settings.public_url, "iat": int(clock.now().timestamp()), **members})


def verify(receipt: str) -> tuple[Statement, Any] | None:
    """Return what a receipt of this service states; None if none of its keys has signed it."""
    if len(receipt) > _MAX_LENGTH:
        return None
    try:
        found = jws.deserialize_compact(receipt, KeySet([*_keys()]), algorithms=[_ALGORITHM])
        return Statement(found.headers()["typ"]), parse_response(found.payload)
    except (JoseError, ValueError, KeyError):
        return None


def _keys() -> tuple[ECKey, ...]:
    """Return the keys for receipts: the first signs, all verify."""
    return _parse(keys(app_state().settings.receipt_signing_keys.get_secret_value(), "RECEIPT_SIGNING_KEYS"), did())


@lru_cache(maxsize=4)
def _parse(secrets: tuple[tuple[str, bytes], ...], identifier: str) -> tuple[ECKey, ...]:
    found = [
        (f"{identifier}#{name}", ec.derive_private_key(int.from_bytes(key), ec.SECP256R1())) for name, key in secrets
    ]
    return tuple(ECKey(key, key, {"kid": kid, "alg": _ALGORITHM, "use": "sig"}) for kid, key in found)
