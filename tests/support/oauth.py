"""An application that an owner connects by OAuth, as a client without a library sends its requests."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from flask import Flask
from werkzeug.test import TestResponse

from tests.support.owners import Owner

VERIFIER = "v" * 64
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
REDIRECT = "https://app.example.com/callback"
ALL_SCOPES = ["wallet:read", "wallet:pay", "gateway", "catalog"]


@dataclass(slots=True)
class Application:
    """A registered application with its tokens."""

    app: Flask
    redirect_uri: str = REDIRECT
    client_id: str = ""
    origin: str = ""
    tokens: dict[str, Any] = field(default_factory=dict)

    def register(self, **metadata: Any) -> TestResponse:
        body = {"client_name": "Research helper", "redirect_uris": [self.redirect_uri], **metadata}
        answer = self.app.test_client().post("/oauth/register", json=body)
        if answer.status_code == 201:
            self.client_id = answer.get_json()["client_id"]
        return answer

    def authorization(self, **parameters: str | None) -> str:
        values = {
            "response_type": "code", "client_id": self.client_id, "redirect_uri": self.redirect_uri, "state": "s1",
            "scope": " ".join(ALL_SCOPES), "code_challenge": CHALLENGE, "code_challenge_method": "S256",
            "resource": "http://purser.test/mcp", **parameters,
        }  # fmt: skip
        return f"/oauth/authorize?{urlencode({name: value for name, value in values.items() if value is not None})}"

    def exchange(self, code: str, **parameters: str) -> TestResponse:
        values = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.redirect_uri}
        return self.token(**{**values, "code_verifier": VERIFIER, **parameters})

    def refresh(self, refresh_token: str | None = None, **parameters: str) -> TestResponse:
        text = self.tokens["refresh_token"] if refresh_token is None else refresh_token
        return self.token(grant_type="refresh_token", refresh_token=text, **parameters)

    def token(self, **parameters: str) -> TestResponse:
        answer = self.app.test_client().post("/oauth/token", data={"client_id": self.client_id, **parameters})
        if answer.status_code == 200:
            self.tokens = answer.get_json()
        return answer

    def get(self, path: str, token: str | None = None) -> TestResponse:
        return self.app.test_client().get(path, headers=self.bearer(token))

    def post(self, path: str, body: Any = None, **headers: str) -> TestResponse:
        return self.app.test_client().post(path, json=body, headers={**self.bearer(), **headers})

    def bearer(self, token: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {token or self.tokens['access_token']}"}

    def call_tool(self, name: str, **arguments: Any) -> TestResponse:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        return self.post("/mcp", message, Accept="application/json, text/event-stream")

    def connect(self, owner: Owner, made: dict[str, Any], **choices: Any) -> None:
        """Register, let the owner consent, and exchange the code."""
        if not self.client_id:
            self.register()
        code = code_of(consent(owner, self.authorization(), made, **choices))
        exchanged = self.exchange(code)
        assert exchanged.status_code == 200, exchanged.text


def consent_page(owner: Owner, path: str) -> TestResponse:
    """Open what an application opens, and continue to the form of the signed-in owner."""
    start = owner.get(path)
    assert start.status_code == 200, start.text
    [signed] = [part.split('"')[0] for part in start.text.split('href="/owner/connect/')[1:]]
    return owner.get(f"/owner/connect/{signed}")


def consent(
    owner: Owner, path: str, made: dict[str, Any], *, form: TestResponse | None = None, **fields: Any
) -> TestResponse:
    """Choose in the form, as the page renders it, and return the answer."""
    page = form or consent_page(owner, path)
    assert page.status_code == 200, page.text
    account = f"{made['agentId']} {made['wallet']['id']}"
    chosen = {"account": account, "scope": ALL_SCOPES, "days": "90", "decision": "allow", **fields}
    [action] = [part.split('"')[0] for part in page.text.split('action="')[1:] if part.startswith("/owner/connect/")]
    return owner.send(page, action, **chosen)


def code_of(answer: TestResponse) -> str:
    """Return the code in a redirect to the application."""
    assert answer.status_code == 303, answer.text
    return str(query_of(answer)["code"])


def query_of(answer: TestResponse) -> dict[str, str]:
    return {name: value for name, [value] in parse_qs(urlsplit(answer.headers["Location"]).query).items()}
