"""Keys that stay in a KMS or an HSM, and encrypt the data keys of wallets. Clients are imported when they are used."""

import secrets
import threading
from base64 import b64decode, b64encode
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

_SECONDS = 5
_NONCE_BYTES = 12
_FIELDS = {"encrypt": ("plaintext", "ciphertext"), "decrypt": ("ciphertext", "plaintext")}
_AWS_FIELDS = {"encrypt": ("Plaintext", "CiphertextBlob"), "decrypt": ("CiphertextBlob", "Plaintext")}
# PKCS#11 libraries are not told of threads. A login is of the whole process, and SoftHSM writes its token at each.
_pkcs11_lock = threading.Lock()
_pkcs11_sessions: dict[tuple[str, str], Any] = {}


def aws_kms(arn: str, operation: str, text: str, wallet_id: str) -> str:
    """Use a symmetric key of AWS KMS; CloudTrail shows the encryption context."""
    given, wanted = _AWS_FIELDS[operation]
    asked = {"KeyId": arn, "EncryptionContext": {"wallet_id": wallet_id}, given: b64decode(text)}
    return _base64(getattr(_aws_client(arn.split(":")[3]), operation)(**asked)[wanted])


@cache
def _aws_client(region: str) -> Any:
    from botocore import config, session  # noqa: PLC0415

    limits = config.Config(connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 2})
    return session.get_session().create_client("kms", region, config=limits)


def google_kms(name: str, operation: str, text: str, wallet_id: str) -> Any:
    """Use a symmetric key of Google Cloud KMS, by REST, because its client needs gRPC."""
    given, wanted = _FIELDS[operation]
    answer = _google_session().post(
        f"https://cloudkms.googleapis.com/v1/{name}:{operation}", timeout=_SECONDS, allow_redirects=False,
        json={given: text, "additionalAuthenticatedData": _base64(wallet_id.encode())},
        headers={"X-Goog-Request-Reason": f"wallet {wallet_id}"},
    )  # fmt: skip
    answer.raise_for_status()
    return answer.json()[wanted]


@cache
def _google_session() -> Any:
    from google.auth import default  # noqa: PLC0415
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415

    credentials, _project = default(scopes=["https://www.googleapis.com/auth/cloudkms"])
    return AuthorizedSession(credentials, refresh_timeout=_SECONDS)  # type: ignore[no-untyped-call]


def vault_transit(token: SecretStr, host: str, mount: str, key: str, operation: str, text: str, wallet_id: str) -> Any:  # noqa: PLR0917
    """Use a key of the transit engine of HashiCorp Vault or OpenBao, of a type with associated data."""
    from hvac import Client  # noqa: PLC0415

    given, wanted = _FIELDS[operation]
    # A client for each use: without VAULT_TOKEN it reads the file that Vault Agent renews.
    client = Client(f"https://{host}", token.get_secret_value() or None, timeout=_SECONDS, allow_redirects=False)
    asked = {given: text, "associated_data": _base64(wallet_id.encode())}
    return client.write_data(f"{mount}/{operation}/{key}", data=asked)["data"][wanted]


def pkcs11_key(pin: SecretStr, label: str, name: str, module: str, operation: str, text: str, wallet_id: str) -> str:  # noqa: PLR0917
    """Use an AES key of an HSM, or of SoftHSM, with CKM_AES_GCM."""
    from pkcs11 import GCMParams, Mechanism, ObjectClass, lib  # noqa: PLC0415

    body = (secrets.token_bytes(_NONCE_BYTES) if operation == "encrypt" else b"") + b64decode(text)
    gcm = {"mechanism": Mechanism.AES_GCM, "mechanism_param": GCMParams(body[:_NONCE_BYTES], wallet_id.encode())}
    with _pkcs11_lock, ExitStack() as after_failure:
        opened: Any = _pkcs11_sessions.pop((module, label), None)
        session: Any = opened or lib(module).get_token(token_label=label).open(user_pin=pin.get_secret_value())
        after_failure.push(session)
        key = session.get_key(object_class=ObjectClass.SECRET_KEY, label=name)
        result = getattr(key, operation)(body[_NONCE_BYTES:], **gcm)
        _pkcs11_sessions[module, label] = session
        after_failure.pop_all()
    return _base64(body[:_NONCE_BYTES] + result if operation == "encrypt" else result)


def key_file(path: str, operation: str, text: str, wallet_id: str) -> str:
    """Use the 32 bytes in a file that only the user of the signer process can read."""
    key, given, nonce = AESGCM(Path(path).read_bytes()), b64decode(text), secrets.token_bytes(_NONCE_BYTES)
    if operation == "decrypt":
        return _base64(key.decrypt(given[:_NONCE_BYTES], given[_NONCE_BYTES:], wallet_id.encode()))
    return _base64(nonce + key.encrypt(nonce, given, wallet_id.encode()))


def _base64(body: bytes) -> str:
    return b64encode(body).decode()
