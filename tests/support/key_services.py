"""Stand-ins of services that keep keys. They speak the real protocols and refuse what is not signed or not permitted.

A data key is encrypted with AES-256-GCM, the wallet being the associated data, as the services do.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flask import Flask
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from app.adapters import key_services
from app.adapters.vault import LocalVault
from app.capacity.single_flight_cache import SingleFlightCache
from app.platform import row_seals
from tests.support.applications import change_ports
from tests.support.certificates import certificate
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve

VAULT_TOKEN = "hvs.canary-vault-token-0123456789"
AWS_ACCESS_KEY, AWS_SECRET_KEY = "AKIACANARYACCESSKEY1", "canary/aws/secret/key/0123456789abcdefgh"
AWS_ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
GOOGLE_NAME = "projects/p/locations/europe-west3/keyRings/r/cryptoKeys/wallets"
PIN = "canary-pin-4711"


@dataclass
class StoredKey:
    """The key of a stand-in, what it was used for, and how it misbehaves."""

    versions: list[bytes] = field(default_factory=lambda: [secrets.token_bytes(32)])
    uses: list[tuple[str, str]] = field(default_factory=list)
    replace_plaintext: Callable[[bytes], bytes] = lambda plain: plain
    misbehave: Callable[[Asked], Reply | None] = lambda _asked: None

    def encrypt(self, plain: bytes, wallet: str) -> bytes:
        self.uses.append(("encrypt", wallet))
        nonce = secrets.token_bytes(12)
        return nonce + AESGCM(self.versions[-1]).encrypt(nonce, plain, wallet.encode())

    def decrypt(self, text: bytes, wallet: str, version: int = 0) -> bytes | None:
        """Return the data key; None if the text is not for this wallet."""
        self.uses.append(("decrypt", wallet))
        try:
            plain = AESGCM(self.versions[version]).decrypt(text[:12], text[12:], wallet.encode())
        except (InvalidTag, ValueError):
            return None
        return self.replace_plaintext(plain)


@contextmanager
def vault_transit(folder: Path, monkeypatch: Any, *, token: str = VAULT_TOKEN) -> Iterator[tuple[StoredKey, str]]:
    """Serve the key `wallets` of the engine `transit` over TLS; yield it and its host."""
    key = StoredKey()
    path = certificate(folder, name=x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    # hvac reads this variable when it is imported, requests at each request.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))

    def answer(asked: Asked) -> Reply:
        if (misbehaviour := key.misbehave(asked)) is not None:
            return misbehaviour
        if asked.headers.get("X-Vault-Token") != token:
            return _json({"errors": ["permission denied"]}, status=403)
        operation = re.fullmatch(r"/v1/transit/(encrypt|decrypt)/wallets", asked.target)
        if asked.method != "POST" or operation is None:
            return _json({"errors": ["no handler for route"]}, status=404)
        body = json.loads(asked.body)
        wallet = base64.b64decode(body["associated_data"], validate=True).decode()
        if operation[1] == "encrypt":
            text = key.encrypt(base64.b64decode(body["plaintext"], validate=True), wallet)
            return _json({"data": {"ciphertext": f"vault:v{len(key.versions)}:{_b64(text)}"}})
        return _opened(key, body["ciphertext"], wallet)

    server = RecordingServer(answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.start()
    try:
        yield key, f"127.0.0.1:{server.server_port}"
    finally:
        server.stop()


def _opened(key: StoredKey, ciphertext: str, wallet: str) -> Reply:
    version = re.fullmatch(r"vault:v([1-9]\d*):([A-Za-z0-9+/=]+)", ciphertext)
    if version is None:
        return _json({"errors": ["invalid ciphertext: no prefix"]}, status=400)
    plain = key.decrypt(base64.b64decode(version[2]), wallet, int(version[1]) - 1)
    if plain is None:
        return _json({"errors": ["cipher: message authentication failed"]}, status=400)
    return _json({"data": {"plaintext": _b64(plain)}})


@contextmanager
def aws_kms(monkeypatch: Any) -> Iterator[StoredKey]:
    """Serve AWS KMS: requests whose SigV4 signature is not what the secret key gives are refused."""
    key = StoredKey()

    def answer(asked: Asked) -> Reply:
        if (misbehaviour := key.misbehave(asked)) is not None:
            return misbehaviour
        if not _is_signed(asked):
            return _aws_error("InvalidSignatureException")
        body, operation = json.loads(asked.body), asked.headers["X-Amz-Target"].removeprefix("TrentService.").lower()
        if body["KeyId"] != AWS_ARN:
            return _aws_error("NotFoundException")
        wallet = body["EncryptionContext"]["wallet_id"]
        if operation == "encrypt":
            return _json({"KeyId": AWS_ARN, "CiphertextBlob": _b64(key.encrypt(_unb64(body["Plaintext"]), wallet))})
        plain = key.decrypt(_unb64(body["CiphertextBlob"]), wallet)
        if plain is None:
            return _aws_error("InvalidCiphertextException")
        return _json({"KeyId": AWS_ARN, "Plaintext": _b64(plain)})

    with serve(answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET_KEY)
        key_services._aws_client.cache_clear()
        yield key


def _is_signed(asked: Asked) -> bool:
    """Return whether a request has the signature of Signature Version 4, computed here anew."""
    headers = {name.lower(): value.strip() for name, value in asked.headers.items()}
    parts = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/kms/aws4_request, SignedHeaders=([a-z0-9;-]+),"
        r" Signature=([0-9a-f]{64})",
        headers.get("authorization", ""),
    )
    if parts is None or parts[1] != AWS_ACCESS_KEY or "host" not in parts[4] or "x-amz-date" not in parts[4]:
        return False
    canonical = "\n".join([
        asked.method, asked.target, "", *(f"{name}:{headers[name]}" for name in parts[4].split(";")), "", parts[4],
        hashlib.sha256(asked.body).hexdigest(),
    ])  # fmt: skip
    scope = f"{parts[2]}/{parts[3]}/kms/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    secret = f"AWS4{AWS_SECRET_KEY}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return hmac.compare_digest(secret.hex(), parts[5])


@contextmanager
def google_kms(folder: Path, monkeypatch: Any) -> Iterator[StoredKey]:
    """Serve Google Cloud KMS, and access tokens for assertions that a service account has signed."""
    key, account, tokens = StoredKey(), rsa.generate_private_key(65537, 2048), set[str]()

    def answer(asked: Asked) -> Reply:
        if (misbehaviour := key.misbehave(asked)) is not None:
            return misbehaviour
        if asked.target == "/token":
            signed, _, signature = parse_qs(asked.body.decode())["assertion"][0].rpartition(".")
            raw = base64.urlsafe_b64decode(signature + "==")
            account.public_key().verify(raw, signed.encode(), padding.PKCS1v15(), SHA256())
            tokens.add(token := f"ya29.{secrets.token_hex(16)}")
            return _json({"access_token": token, "expires_in": 3600, "token_type": "Bearer"})
        if asked.headers.get("authorization", "").removeprefix("Bearer ") not in tokens:
            return _json({"error": {"code": 401, "status": "UNAUTHENTICATED"}}, status=401)
        body, operation = json.loads(asked.body), asked.target.removeprefix(f"/v1/{GOOGLE_NAME}:")
        wallet = _unb64(body["additionalAuthenticatedData"]).decode()
        assert asked.headers["X-Goog-Request-Reason"] == f"wallet {wallet}"
        if operation == "encrypt":
            return _json({"ciphertext": _b64(key.encrypt(_unb64(body["plaintext"]), wallet))})
        plain = key.decrypt(_unb64(body["ciphertext"]), wallet)
        if operation != "decrypt" or plain is None:
            return _json({"error": {"code": 400, "status": "INVALID_ARGUMENT"}}, status=400)
        return _json({"plaintext": _b64(plain)})

    with serve(answer) as server:
        private = account.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        credentials = {
            "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": private,
            "client_email": "purser@p.iam.gserviceaccount.com", "client_id": "1", "token_uri": f"{server.url}/token",
        }  # fmt: skip
        (folder / "account.json").write_text(json.dumps(credentials))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))
        key_services._google_session.cache_clear()
        key_services._google_session().mount("https://cloudkms.googleapis.com/", _Redirected(server.url))
        yield key


class _Redirected(HTTPAdapter):
    """Sends what is for Google to a stand-in."""

    def __init__(self, url: str) -> None:
        self._url = url
        super().__init__()

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        assert request.url is not None
        request.url = request.url.replace("https://cloudkms.googleapis.com", self._url)
        return super().send(request, *args, **options)


def softhsm_module() -> str | None:
    """Return SoftHSM's library (`apt install softhsm2`), if it is installed."""
    found = [*Path("/usr/lib").glob("softhsm/libsofthsm2.so"), *Path("/usr/local/lib").glob("softhsm/libsofthsm2.so")]
    return str(found[0]) if found else None


def make_softhsm(folder: Path, module: str) -> None:
    """Create a token `purser` with AES keys `wallets` and `others`; its library reads where it is once per process."""
    import pkcs11  # noqa: PLC0415 - only where SoftHSM is

    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\nlog.level = ERROR\n")
    os.environ["SOFTHSM2_CONF"] = str(folder / "softhsm2.conf")
    subprocess.run(
        ["softhsm2-util", "--init-token", "--free", "--label", "purser", "--so-pin", "so-pin", "--pin", PIN],
        check=True, capture_output=True,
    )  # fmt: skip
    with pkcs11.lib(module).get_token(token_label="purser").open(rw=True, user_pin=PIN) as session:
        for label in ("wallets", "others"):
            session.generate_key(pkcs11.KeyType.AES, 256, label=label, store=True)


def _json(body: Mapping[str, Any], *, status: int = 200) -> Reply:
    return Reply(json.dumps(body).encode(), status=status, headers={"Content-Type": "application/json"})


def _aws_error(name: str) -> Reply:
    return _json({"__type": name, "message": f"{name} of {AWS_SECRET_KEY}"}, status=400)


def _b64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _unb64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


class SwitchedService:
    """A key service in this process, which can be out."""

    def __init__(self) -> None:
        self.key, self.is_out = StoredKey(), False

    def __call__(self, operation: str, text: str, wallet_id: str) -> str:
        if self.is_out:
            raise ConnectionError
        if operation == "encrypt":
            return _b64(self.key.encrypt(_unb64(text), wallet_id))
        plain = self.key.decrypt(_unb64(text), wallet_id)
        if plain is None:
            raise PermissionError
        return _b64(plain)


def move_keys(app: Flask) -> tuple[SwitchedService, Callable[[], None]]:
    """Move the keys of all wallets to a service; return it, and what forgets the data keys."""
    service = SwitchedService()
    vault = LocalVault(app.state.settings.encryption_key_list(), {"k3": service}, "k3")
    change_ports(app, vault=vault)
    row_seals.reseal_all(vault, batch=100)

    def forget() -> None:
        vault._data_keys = SingleFlightCache()

    forget()
    return service, forget
