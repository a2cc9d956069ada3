"""Messages for the holder of one key: HPKE (RFC 9180), base mode, P-256, HKDF-SHA256, AES-256-GCM.

Browsers have had P-256 in WebCrypto for ten years, and X25519 only since 2025; P-256 has no points of small order.
`static/wallet-keys.js` does the same. Texts are base64url; no exception contains a message or a key.
"""

import base64

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_CURVE = ec.SECP256R1()


def new_key() -> tuple[bytes, str]:
    """Return a private key, and its public key."""
    key = ec.generate_private_key(_CURVE)
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return key.private_numbers().private_value.to_bytes(32, "big"), base64url(point)


def point(public_key: str) -> ec.EllipticCurvePublicKey:
    """Return a public key. Raises: ValueError if it is no point of the curve."""
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _decode(public_key))


def seal(message: bytes, recipient: ec.EllipticCurvePublicKey, info: str) -> str:
    """Encrypt a message for one purpose."""
    return base64url(_SUITE.encrypt(message, recipient, info.encode()))


def unseal(sealed: str, private_key: bytes, info: str) -> bytes:
    """Decrypt what was sealed for a key and purpose. Raises: ValueError."""
    key = ec.derive_private_key(int.from_bytes(private_key, "big"), _CURVE)
    try:
        return _SUITE.decrypt(_decode(sealed), key, info.encode())
    except InvalidTag:
        raise ValueError("this was not sealed for this key and purpose") from None


def base64url(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
