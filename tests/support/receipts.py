"""Receipts, as who has no library for them reads and forges them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256

SERVICE = "http://purser.test"


def encoded_part(value: Mapping[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def decoded_part(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=="))
    return found


def statement_of(receipt: str) -> dict[str, Any]:
    return decoded_part(receipt.split(".")[1])


def signed_by(private: ec.EllipticCurvePrivateKey, header: Mapping[str, Any], stated: Mapping[str, Any]) -> str:
    """Return a JWS with a signature of this key, valid for the algorithm ES256."""
    signed = f"{encoded_part(header)}.{encoded_part(stated)}"
    r, s = utils.decode_dss_signature(private.sign(signed.encode(), ec.ECDSA(SHA256())))
    return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
