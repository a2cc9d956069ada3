"""Keys that stay in a KMS or an HSM, and encrypt the data keys of wallets. Clients are imported when they are used.

They find their credentials as their own documentation says; only VAULT_TOKEN and PKCS11_PIN are settings.
"""

import secrets
import threading
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any

from werkzeug.utils import cached_property

from app.ports.errors import Rejected

_SECONDS = 5
_NONCE_BYTES = 12
# PKCS#11 libraries are not told of threads, and a login is of the whole process.
_pkcs11_lock = threading.Lock()


@dataclass(frozen=True)
class AwsKms:
    """A symmetric key of AWS KMS; CloudTrail shows the encryption context."""

    arn: str
    region: str

    @cached_property
    def _client(self) -> Any:
        from botocore.config import Config  # noqa: PLC0415
        from botocore.session import get_session  # noqa: PLC0415

        config = Config(connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 2})
        return get_session().create_client("kms", self.region, config=config)

    def use(self, operation: str, text: bytes, wallet_id: str) -> Any:
        key = {"KeyId": self.arn, "EncryptionContext": {"wallet_id": wallet_id}}
        if operation == "encrypt":
            return self._client.encrypt(Plaintext=text, **key)["CiphertextBlob"]
        return self._client.decrypt(CiphertextBlob=text, **key)["Plaintext"]


@dataclass(frozen=True)
class GoogleKms:
    """A symmetric key of Google Cloud KMS, by REST, because its client needs gRPC."""

    name: str
    base_url: str = "https://cloudkms.googleapis.com"

    @cached_property
    def _session(self) -> Any:
        from google.auth import default  # noqa: PLC0415
        from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415

        credentials, _project = default(scopes=["https://www.googleapis.com/auth/cloudkms"])
        session: Any = AuthorizedSession  # untyped
        return session(credentials, refresh_timeout=_SECONDS)

    def use(self, operation: str, text: bytes, wallet_id: str) -> bytes:
        given, wanted = ("plaintext", "ciphertext") if operation == "encrypt" else ("ciphertext", "plaintext")
        answer = self._session.post(
            f"{self.base_url}/v1/{self.name}:{operation}", timeout=_SECONDS, allow_redirects=False,
            json={given: _base64(text), "additionalAuthenticatedData": _base64(wallet_id.encode())},
            headers={"X-Goog-Request-Reason": f"wallet {wallet_id}"},
        )  # fmt: skip
        if answer.status_code == 400 and "INVALID_ARGUMENT" in answer.text:  # noqa: PLR2004 - for another wallet
            raise Rejected("sealed_unreadable")
        answer.raise_for_status()
        return b64decode(answer.json()[wanted])


@dataclass(frozen=True)
class VaultTransit:
    """A key of the transit engine of HashiCorp Vault or OpenBao, of a type with associated data: `aes256-gcm96`."""

    token: str = field(repr=False)
    host: str
    mount: str
    key: str

    def use(self, operation: str, text: bytes, wallet_id: str) -> Any:
        from hvac import Client, exceptions  # noqa: PLC0415

        # A client for each use: without VAULT_TOKEN it reads the file that Vault Agent renews.
        client = Client(f"https://{self.host}", self.token or None, timeout=_SECONDS, allow_redirects=False)
        transit, wallet = client.secrets.transit, {"associated_data": _base64(wallet_id.encode())}
        if operation == "encrypt":
            answer = transit.encrypt_data(self.key, _base64(text), mount_point=self.mount, **wallet)
            return answer["data"]["ciphertext"].encode()
        try:
            answer = transit.decrypt_data(self.key, text.decode(), mount_point=self.mount, **wallet)
        except exceptions.InvalidRequest as error:
            # It says the same without a token, and of a version that a policy forbids.
            if "message authentication failed" in str(error) or "invalid ciphertext" in str(error):
                raise Rejected("sealed_unreadable") from None
            raise
        return b64decode(answer["data"]["plaintext"])


@dataclass(frozen=True)
class Pkcs11Key:
    """An AES key of an HSM, or of SoftHSM, with CKM_AES_GCM."""

    pin: str = field(repr=False)
    label: str
    object: str
    module: str

    def use(self, operation: str, text: bytes, wallet_id: str) -> Any:
        import pkcs11  # noqa: PLC0415

        nonce = secrets.token_bytes(_NONCE_BYTES) if operation == "encrypt" else text[:_NONCE_BYTES]
        gcm = {"mechanism": pkcs11.Mechanism.AES_GCM, "mechanism_param": pkcs11.GCMParams(nonce, wallet_id.encode())}
        with _pkcs11_lock, pkcs11.lib(self.module).get_token(token_label=self.label).open(user_pin=self.pin) as session:
            key: Any = session.get_key(object_class=pkcs11.ObjectClass.SECRET_KEY, label=self.object)
            if operation == "encrypt":
                return nonce + key.encrypt(text, **gcm)
            return key.decrypt(text[_NONCE_BYTES:], **gcm)


def _base64(body: bytes) -> str:
    return b64encode(body).decode()
