"""Verification of receipts without asking the service: of payments, terms, records and refusals (JWS, ES256)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from purser.errors import ReceiptVerificationError

_TYPES = ("x402-offer+jws", "x402-receipt+jws", "purser-record+jws", "purser-refusal+jws")
_MAX_LENGTH = 16_384
_HALF = 32


class Receipt(NamedTuple):
    """What a service has signed: `type` is one of its kinds of statements, `statement` what it states."""

    type: str
    statement: dict[str, Any]


def verify_receipt(receipt: str, keys: Mapping[str, Any], service_url: str) -> Receipt:
    """Return what a receipt of a service states. Raises: ReceiptVerificationError.

    `keys` is the content of its `/.well-known/jwks.json`: kept copies verify receipts of keys that it has removed
    since. Needs the package `cryptography`, of the extra `purser-sdk[receipts]`.
    """
    try:
        return _read(receipt, keys["keys"], urlsplit(service_url))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ReceiptVerificationError(
            "This is no receipt that this service has signed with one of these keys.", code="RECEIPT_INVALID"
        ) from None


def _read(receipt: str, keys: Sequence[Mapping[str, Any]], service: SplitResult) -> Receipt:
    header, statement, signature = (_decoded(part) for part in receipt[: _MAX_LENGTH + 1].split("."))
    found = json.loads(header)
    [key] = [each for each in keys if each["kid"] == found["kid"]]
    host = f"did:web:{service.netloc.replace(':', '%3A')}#"
    is_known = found["alg"] == "ES256" and found["typ"] in _TYPES and "crit" not in found
    if not is_known or len(receipt) > _MAX_LENGTH or not found["kid"].startswith(host):
        raise ValueError
    _verify(key, receipt.rpartition(".")[0].encode(), signature)
    stated = json.loads(statement)
    if urlsplit(stated.get("iss") or stated["resourceUrl"])[:2] != service[:2]:
        raise ValueError
    return Receipt(found["typ"], stated)


def _decoded(part: str) -> bytes:
    return base64.b64decode(part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4), validate=True)


def _verify(key: Mapping[str, Any], signed: bytes, signature: bytes) -> None:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an optional requirement
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, utils  # noqa: PLC0415

    if (key["kty"], key["crv"], len(signature)) != ("EC", "P-256", 2 * _HALF):
        raise ValueError
    x, y = (int.from_bytes(_decoded(key[name]), "big") for name in ("x", "y"))
    public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
    try:
        public.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ValueError from None
