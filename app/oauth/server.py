"""The authorization server: authlib's grants for a code with PKCE, a refresh token and a device code.

One is made for each request, with the session of its unit and the application, which is looked up before. A token that
is used twice ends its connection, and the unit commits that: authlib returns refusals, and raises nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import flask
from authlib.integrations.flask_oauth2.requests import FlaskOAuth2Request
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants as flows
from authlib.oauth2.rfc6749.errors import InvalidRequestError
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceCodeGrant
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Response, jsonify
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict
from werkzeug.test import EnvironBuilder

from app.audit_log import actors
from app.identity import grants
from app.identity.principal import Grant
from app.oauth import connections, tokens
from app.oauth.clients import Client
from app.oauth.tokens import OAuthToken, TokenKind
from app.state import app_state

# It logs whole tokens at the level below.
logging.getLogger("authlib").setLevel(logging.INFO)


class InvalidTarget(OAuth2Error):
    """The token is meant for another service (RFC 8707)."""

    error = "invalid_target"


def request_of(method: str, values: MultiDict[str, str]) -> FlaskOAuth2Request:
    """Return a request with these parameters; TLS ends in front of this service, and authlib refuses other schemes."""
    sent: dict[str, Any] = {"query_string" if method == "GET" else "data": values}
    builder = EnvironBuilder(base_url="https://purser/oauth", method=method, **sent)
    return FlaskOAuth2Request(flask.Request(builder.get_environ()))


class _S256(CodeChallenge):
    """PKCE is required, and `plain` is not accepted."""

    def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
        data = grant.request.payload.data
        if not data.get("code_challenge") or data.get("code_challenge_method") != "S256":
            raise InvalidRequestError("code_challenge is required, with code_challenge_method=S256.")
        assert_target(grant.request.payload.datalist["resource"])
        super().validate_code_challenge(grant, redirect_uri)


def _ignore(*_arguments: Any, **_options: Any) -> None:
    """Do nothing."""


class _OneUse:
    """What authlib asks of a grant; rows are stored elsewhere, and a used one is kept: another use is noticed."""

    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)
    INCLUDE_NEW_REFRESH_TOKEN = True
    server: Server
    request: FlaskOAuth2Request

    def authenticate_user(self, token: OAuthToken) -> Grant | None:
        return self.server.grant_of(token)

    save_authorization_code = delete_authorization_code = revoke_old_credential = _ignore


class _CodeGrant(_OneUse, flows.AuthorizationCodeGrant):
    def generate_authorization_code(self) -> str:
        payload, grant = self.request.payload, self.request.user
        return tokens.add(
            self.server.session, TokenKind.CODE, self.request.client, until=grant.expires_at, grant_id=grant.id,
            scope=" ".join(grant.scopes), redirect_uri=payload.redirect_uri,
            code_challenge=payload.data["code_challenge"],
        )  # fmt: skip

    def query_authorization_code(self, code: str, client: Client) -> OAuthToken | None:
        return self.server.use(TokenKind.CODE, code, client)


class _RefreshGrant(_OneUse, flows.RefreshTokenGrant):
    def authenticate_refresh_token(self, refresh_token: str) -> OAuthToken | None:
        return self.server.use(TokenKind.REFRESH, refresh_token, self.request.client)


class _DeviceGrant(_OneUse, DeviceCodeGrant):
    def query_device_credential(self, device_code: str) -> OAuthToken | None:
        self._found = tokens.find(self.server.session, TokenKind.DEVICE, device_code)
        return self._found

    def query_user_grant(self, _user_code: str) -> tuple[Grant | None, bool] | None:
        found = self._found
        if found is None or not (found.grant_id or found.denied_at):
            return None
        used = None if found.denied_at else self.server.use(TokenKind.DEVICE, self.request.form["device_code"], found)
        return (None if used is None else self.server.grant_of(used)), used is not None

    def should_slow_down(self, credential: OAuthToken) -> bool:
        return tokens.note_poll(self.server.session, credential)


class _Issuer(IssuerParameter):
    def get_issuer(self) -> str:
        return app_state().settings.public_url


def response_of(status: int, body: Any, headers: Any) -> Response:
    response = jsonify(body) if isinstance(body, (dict, list)) else Response(body)
    response.status_code = status
    response.headers.update(headers)
    return response


class Server(AuthorizationServer):
    """The server for one request."""

    def __init__(self, session: Session, client: Client | None) -> None:
        super().__init__()
        self.session, self._client = session, client
        self.register_grant(_CodeGrant, [_S256()])
        self.register_grant(_RefreshGrant)
        self.register_grant(_DeviceGrant)
        self.register_token_generator("default", self._issue)
        self.register_extension(_Issuer())

    def use(self, kind: TokenKind, text: str, client: Any) -> OAuthToken | None:
        """Use a token of a live connection; one that was used before ends it."""
        found = tokens.find(self.session, kind, text)
        if found is None or found.grant_id is None or found.client_id != client.get_client_id():
            return None
        if not tokens.use(self.session, found):
            # Somebody else has it, too.
            if live := self.grant_of(found):
                by = actors.system_actor("reuse of a token")
                connections.end(self.session, by, live, reason="token_reused")
            return None
        return None if found.is_expired() or self.grant_of(found) is None else found

    def grant_of(self, token: OAuthToken) -> Grant | None:
        return None if token.grant_id is None else grants.find_live(self.session, token.grant_id)

    def query_client(self, client_id: str) -> Client | None:
        return self._client if self._client is not None and self._client.id == client_id else None

    # `_issue` has stored it, and nobody listens.
    save_token = send_signal = _ignore

    def create_oauth2_request(self, request: FlaskOAuth2Request) -> FlaskOAuth2Request:
        return request

    handle_response = staticmethod(response_of)

    def _issue(self, *, client: Client, user: Grant, **_options: Any) -> dict[str, Any]:
        scope, until = " ".join(user.scopes), user.expires_at
        access_token, seconds = grants.issue_token(self.session, user)
        refresh_token = tokens.add(self.session, TokenKind.REFRESH, client, until=until, scope=scope, grant_id=user.id)
        answer = {"access_token": access_token, "token_type": "Bearer", "expires_in": seconds}
        return {**answer, "refresh_token": refresh_token, "scope": scope}


def assert_target(resources: Iterable[str]) -> None:
    """Check that a token is asked for this service, if the request says for which. Raises: InvalidTarget."""
    own = app_state().settings.public_url
    if not set(resources) <= {own, f"{own}/", grants.resource(), f"{grants.resource()}/"}:
        raise InvalidTarget(f"Tokens are issued for {grants.resource()} only.")
