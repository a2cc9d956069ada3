"""An authenticator in software that signs what a test wants it to, and so can also lie."""

from __future__ import annotations

import hashlib
import html
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from webauthn.helpers import base64url_to_bytes, bytes_to_base64url
from werkzeug.test import TestResponse

from tests.support.owners import Owner, forms_of

_USER_PRESENT, _USER_VERIFIED, _BACKUP_ELIGIBLE, _CREDENTIAL_INCLUDED = 0x01, 0x04, 0x08, 0x40

_PROMPT = re.compile(r'<form\b[^>]*action="([^"]*)"[^>]*>(?:(?!</form>).)*?data-options="([^"]*)"', re.DOTALL)


def prompt_of(page: TestResponse, path: str) -> dict[str, Any]:
    """Return the options of the passkey prompt in the form with this action."""
    found = dict(_PROMPT.findall(page.text))
    options: dict[str, Any] = json.loads(html.unescape(found[path]))
    return options


def challenge_of(page: TestResponse, path: str, **fields: str) -> str:
    """Return the challenge of the form with this action as `static/passkeys.js` computes it, with what is typed."""
    sent = {**forms_of(page)[path], **fields}
    unsigned = ("csrf_token", "owner_key", "master_key", "passkey", "passkey_token")
    values = json.dumps(
        [[name, [sent[name]]] for name in sorted(sent) if name not in unsigned],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    text = f"purser form\n{prompt_of(page, path)['challenge']}\nPOST {path}\n{values}"
    return bytes_to_base64url(hashlib.sha256(text.encode()).digest())


@dataclass(slots=True)
class SoftwareAuthenticator:
    """A device with one passkey; its fields are what it claims."""

    origin: str
    rp_id: str = "localhost"
    counter: int = 0
    user_verified: bool = True
    user_handle: str = ""
    backup_eligible: bool = False
    client_data: dict[str, Any] = field(default_factory=dict)
    credential_id: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def add_to(self, owner: Owner, page: str, *, name: str = "Phone", **fields: str) -> TestResponse:
        """Add a passkey of this device to the agent of a page; return the last response."""
        path = f"{page}/passkeys"
        offered = owner.send(owner.get(path), path, **{"name": name, "owner_key": owner.key, **fields})
        if offered.status_code != 200:
            return offered
        response = self.create(prompt_of(offered, f"{path}/create"))
        return owner.send(offered, f"{path}/create", passkey=response)

    def create(self, options: Mapping[str, Any]) -> str:
        """Return the response to a prompt that creates a passkey."""
        self.user_handle = options["user"]["id"]
        point = self.key.public_key().public_numbers()
        public_key = {1: 2, 3: -7, -1: 1, -2: point.x.to_bytes(32), -3: point.y.to_bytes(32)}
        credential = len(self.credential_id).to_bytes(2) + self.credential_id + cbor2.dumps(public_key)
        data = self._authenticator_data(_CREDENTIAL_INCLUDED) + bytes(16) + credential
        statement = {"fmt": "none", "attStmt": {}, "authData": data}
        return self._response(
            clientDataJSON=self._client_data("webauthn.create", options["challenge"]),
            attestationObject=cbor2.dumps(statement),
        )

    def sign(self, challenge: str) -> str:
        """Return the response to a prompt with this challenge."""
        data, client_data = self._authenticator_data(), self._client_data("webauthn.get", challenge)
        signed = data + hashlib.sha256(client_data).digest()
        return self._response(
            clientDataJSON=client_data,
            authenticatorData=data,
            signature=self.key.sign(signed, ec.ECDSA(hashes.SHA256())),
            userHandle=base64url_to_bytes(self.user_handle),
        )

    def _authenticator_data(self, flags: int = 0) -> bytes:
        flags |= _USER_PRESENT | (_USER_VERIFIED if self.user_verified else 0)
        flags |= _BACKUP_ELIGIBLE if self.backup_eligible else 0
        return hashlib.sha256(self.rp_id.encode()).digest() + bytes([flags]) + self.counter.to_bytes(4)

    def _client_data(self, kind: str, challenge: str) -> bytes:
        stated = {"type": kind, "challenge": challenge, "origin": self.origin, **self.client_data}
        return json.dumps(stated).encode()

    def _response(self, **parts: bytes) -> str:
        encoded = bytes_to_base64url(self.credential_id)
        response = {name: bytes_to_base64url(value) for name, value in parts.items()}
        return json.dumps(
            {"id": encoded, "rawId": encoded, "type": "public-key", "response": response,
             "clientExtensionResults": {}}
        )  # fmt: skip
