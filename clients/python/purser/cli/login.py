"""Sign in by a code that the owner enters on the service's page (RFC 8628), and renew what it returns."""

from __future__ import annotations

import time
from typing import Any

import click
import httpx

from purser.errors import AuthenticationError, PurserError

SCOPES = ("wallet:read", "wallet:pay", "gateway", "catalog")
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_SECONDS = 5


def sign_in(base_url: str, scopes: tuple[str, ...]) -> dict[str, Any]:
    """Show a code, wait until the owner has answered, and return the tokens. Raises: AuthenticationError."""
    with httpx.Client(base_url=base_url, timeout=30) as http:
        metadata = {"client_name": "Purser command line", "grant_types": [_GRANT, "refresh_token"]}
        client_id = _checked(http.post("/oauth/register", json=metadata))["client_id"]
        form = {"client_id": client_id, "scope": " ".join(scopes)}
        asked = _checked(http.post("/oauth/device_authorization", data=form))
        click.echo(f"Open {asked['verification_uri_complete']}", err=True)
        click.echo(f"and check that it shows the code {asked['user_code']}", err=True)
        interval, until = asked.get("interval", _SLOWER_SECONDS), time.monotonic() + asked["expires_in"]
        form = {"grant_type": _GRANT, "device_code": asked["device_code"], "client_id": client_id}
        while time.monotonic() < until:
            time.sleep(interval)
            answer = http.post("/oauth/token", data=form)
            error = "" if answer.is_success else answer.json().get("error")
            if error == "slow_down":
                interval += _SLOWER_SECONDS
            elif error != "authorization_pending":
                return _tokens(_checked(answer), client_id)
    raise AuthenticationError("Nobody entered the code in time.", code="EXPIRED_TOKEN")


def renew(base_url: str, stored: dict[str, Any]) -> dict[str, Any]:
    """Return new tokens for a refresh token. Raises: AuthenticationError."""
    form = {"grant_type": "refresh_token", "refresh_token": stored["refresh_token"], "client_id": stored["client_id"]}
    answer = httpx.post(f"{base_url}/oauth/token", data=form, timeout=30)
    return _tokens(_checked(answer), stored["client_id"])


def revoke(base_url: str, stored: dict[str, Any]) -> None:
    form = {"token": stored["refresh_token"], "client_id": stored["client_id"]}
    _checked(httpx.post(f"{base_url}/oauth/revoke", data=form, timeout=30))


def _tokens(answer: dict[str, Any], client_id: str) -> dict[str, Any]:
    expires_at = time.time() + answer["expires_in"]
    tokens = {name: answer[name] for name in ("access_token", "refresh_token")}
    return {**tokens, "expires_at": expires_at, "client_id": client_id, "scope": answer.get("scope", "")}


def _checked(answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
    if answer.is_success:
        return body
    message = body.get("error_description") or body.get("error") or f"HTTP {answer.status_code}"
    code = str(body.get("code") or body.get("error") or "LOGIN_FAILED").upper()
    kind = AuthenticationError if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR else PurserError
    raise kind(str(message), code=code, status=answer.status_code, body=body)
