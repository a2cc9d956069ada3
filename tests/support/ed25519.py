"""Ed25519 with a random nonce (RFC 8032): another signature of the same key over the same message, as valid."""

from __future__ import annotations

import hashlib
import secrets

from solders.keypair import Keypair
from solders.signature import Signature

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_Point = tuple[int, int]
_BASE: _Point = (15112221349535400772501151409588531511454012693041857206046113283949847762202, 4 * pow(5, -1, _P) % _P)


def other_signature(keys: Keypair, message: bytes) -> Signature:
    """Return a signature that differs from the one of `sign_message`, which derives its nonce from the message."""
    half = int.from_bytes(hashlib.sha512(keys.secret()).digest()[:32], "little")
    scalar = half & (1 << 254) - 8 | 1 << 254
    nonce = secrets.randbelow(_ORDER)
    commitment = _encoded(_times(nonce, _BASE))
    digest = hashlib.sha512(commitment + bytes(keys.pubkey()) + message).digest()
    response = (nonce + int.from_bytes(digest, "little") * scalar) % _ORDER
    made = Signature.from_bytes(commitment + response.to_bytes(32, "little"))
    assert made.verify(keys.pubkey(), message)
    return made


def _times(factor: int, point: _Point) -> _Point:
    result = (0, 1)
    while factor:
        if factor & 1:
            result = _sum(result, point)
        point, factor = _sum(point, point), factor >> 1
    return result


def _sum(one: _Point, two: _Point) -> _Point:
    (x1, y1), (x2, y2) = one, two
    product = _D * x1 * x2 * y1 * y2
    return ((x1 * y2 + x2 * y1) * pow(1 + product, -1, _P) % _P, (y1 * y2 + x1 * x2) * pow(1 - product, -1, _P) % _P)


def _encoded(point: _Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")
