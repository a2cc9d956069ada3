"""Certificates of servers that tests start."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.core import clock


def certificate(folder: Path, *, name: x509.GeneralName) -> Path:
    """Write a certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The process trusts every certificate of these tests, and OpenSSL looks an issuer up by its name.
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, str(serial))])
    made = (
        x509.CertificateBuilder(issuer, issuer, key.public_key(), serial)
        .not_valid_before(clock.now() - timedelta(days=1))
        .not_valid_after(clock.now() + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(made.public_bytes(Encoding.PEM) + private)
    return path
