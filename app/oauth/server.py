"""The authorization server: authlib's grants for code with PKCE, refresh token and device code, and the revocation.

One is made for each request, with the session of its unit and the application, which is looked up before. A token that
is used twice ends its connection, and the unit commits that: authlib returns refusals, and raises nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import AuthorizationServer, OAuth2Payload, OAuth2Request
from authlib.oauth2.rfc6749 import grants as flows
from authlib.oauth2.rfc6749.errors import InvalidRequestError
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceCodeGrant
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Response, jsonify
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict

from app.identity import grants
from app.identity.principal import Grant
from app.oauth import connections, tokens
from app.oauth.clients import Client
from app.oauth.tokens import StoredToken, TokenKind
from app.state import app_state

# It logs whole tokens at this level.
logging.getLogger("authlib").setLevel(logging.INFO)


class InvalidTarget(OAuth2Error):
    """The token is meant for another service (RFC 8707)."""

    error = "invalid_target"


class _Payload(OAuth2Payload):
    def __init__(self, values: MultiDict[str, str]) -> None:
        self._values = values

    @property
    def data(self) -> dict[str, str]:
        return self._values.to_dict()

    @property
    def datalist(self) -> defaultdict[str, list[str]]:
        return defaultdict(list, self._values.to_dict(flat=False))


class Request(OAuth2Request):
    """A request to the server: the parameters of a query or a form."""

    def __init__(self, method: str, values: MultiDict[str, str], *, client_address: str = "") -> None:
        # TLS ends in front of this service; the library would refuse any other scheme.
        super().__init__(method, "https://purser/oauth")
        self.payload = _Payload(values)
        self.client_address = client_address

    @property
    def form(self) -> dict[str, str]:
        return self.payload.data


class _S256(CodeChallenge):
    """PKCE is required, and `plain` is not accepted."""

    def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
        data = grant.request.payload.data
        if not data.get("code_challenge") or data.get("code_challenge_method") != "S256":
            raise InvalidRequestError("code_challenge is required, with code_challenge_method=S256.")
        super().validate_code_challenge(grant, redirect_uri)


class _CodeGrant(flows.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)
    server: Server

    def save_authorization_code(self, code: str, request: Request) -> None:
        """Do nothing: `generate_authorization_code` has stored it."""

    def generate_authorization_code(self) -> str:
        request, grant = self.request, self.request.user
        return tokens.add(
            self.server.session, TokenKind.CODE, request.client, until=grant.expires_at, grant_id=grant.id,
            scope=" ".join(grant.scopes), redirect_uri=request.payload.redirect_uri or self.redirect_uri,
            code_challenge=request.payload.data["code_challenge"],
        )  # fmt: skip

    def query_authorization_code(self, code: str, client: Client) -> StoredToken | None:
        return self.server.use(TokenKind.CODE, code, client)

    def authenticate_user(self, authorization_code: StoredToken) -> Grant | None:
        return self.server.grant_of(authorization_code)

    def delete_authorization_code(self, authorization_code: StoredToken) -> None:
        """Keep it: using it again ends the connection."""


class _RefreshGrant(flows.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)
    INCLUDE_NEW_REFRESH_TOKEN = True
    server: Server

    def authenticate_refresh_token(self, refresh_token: str) -> StoredToken | None:
        return self.server.use(TokenKind.REFRESH, refresh_token, self.server.client)

    def authenticate_user(self, refresh_token: StoredToken) -> Grant | None:
        return self.server.grant_of(refresh_token)

    def revoke_old_credential(self, refresh_token: StoredToken) -> None:
        """Do nothing: it is used."""


class _DeviceGrant(DeviceCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)
    server: Server

    def query_device_credential(self, device_code: str) -> StoredToken | None:
        return tokens.find(self.server.session, TokenKind.DEVICE, device_code)

    def query_user_grant(self, _user_code: str) -> tuple[Grant | None, bool] | None:
        code = self.request.payload.data["device_code"]
        found = tokens.find(self.server.session, TokenKind.DEVICE, code)
        if found is None or not (found.grant_id or found.is_denied):
            return None
        used = None if found.is_denied else self.server.use(TokenKind.DEVICE, code, self.server.client)
        grant = None if used is None else self.server.grant_of(used)
        return grant, grant is not None

    def should_slow_down(self, credential: StoredToken) -> bool:
        return tokens.note_poll(self.server.session, credential)


class _Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS = ("none",)
    server: Server

    def query_token(self, token_string: str, _token_type_hint: str | None) -> _Revocable | None:
        session = self.server.session
        stored = tokens.find(session, TokenKind.REFRESH, token_string)
        found = self.server.grant_of(stored) if stored else grants.find_of_token(session, token_string)
        return None if found is None else _Revocable(found)

    def revoke_token(self, token: _Revocable, request: Request) -> None:
        connections.end_by_application(self.server.session, token.grant, client_address=request.client_address)


class _Revocable:
    """A live connection, as authlib reads a token."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant

    def check_client(self, client: Client) -> bool:
        return self.grant.client_id == client.id


class _Issuer(IssuerParameter):
    def get_issuer(self) -> str:
        return app_state().settings.public_url


class Server(AuthorizationServer):
    """The server for one request."""

    def __init__(self, session: Session, client: Client | None) -> None:
        super().__init__()
        self.session, self._client = session, client
        self.register_grant(_CodeGrant, [_S256()])
        self.register_grant(_RefreshGrant)
        self.register_grant(_DeviceGrant)
        self.register_endpoint(_Revocation)
        self.register_token_generator("default", self._issue)
        self.register_extension(_Issuer())

    @property
    def client(self) -> Client:
        """Return the application, which authlib has authenticated."""
        assert self._client is not None  # noqa: S101 - the look-up raises before
        return self._client

    def use(self, kind: TokenKind, text: str, client: Client) -> StoredToken | None:
        """Use a token of a live connection; one that was used before ends it."""
        found = tokens.find(self.session, kind, text)
        if found is None or found.grant_id is None or not found.check_client(client):
            return None
        if found.is_used or not tokens.use(self.session, found):
            connections.end_reused(self.session, found.grant_id)
            return None
        return None if found.is_expired() or self.grant_of(found) is None else found

    def grant_of(self, token: StoredToken) -> Grant | None:
        return None if token.grant_id is None else grants.find_live(self.session, token.grant_id)

    def query_client(self, client_id: str) -> Client | None:
        return self._client if self._client is not None and self._client.id == client_id else None

    def save_token(self, token: dict[str, Any], request: Request) -> None:
        """Do nothing: `_issue` has stored it."""

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Do nothing: nobody listens."""

    def create_oauth2_request(self, request: Request) -> Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        response = jsonify(body) if isinstance(body, (dict, list)) else Response(body)
        response.status_code = status
        response.headers.update(headers)
        response.headers["Cache-Control"] = "no-store"
        return response

    def _issue(self, *, client: Client, user: Grant, **_options: Any) -> dict[str, Any]:
        access_token, seconds = grants.issue_token(self.session, user)
        scope = " ".join(user.scopes)
        refresh_token = tokens.add(
            self.session, TokenKind.REFRESH, client, until=user.expires_at, grant_id=user.id, scope=scope
        )
        return {
            "access_token": access_token,
            "token_type": "Bearer",
            "expires_in": seconds,
            "refresh_token": refresh_token,
            "scope": scope,
        }


def assert_target(values: MultiDict[str, str]) -> None:
    """Check that a token is asked for this service, if the request says for which. Raises: InvalidTarget."""
    own = app_state().settings.public_url
    known = {own, f"{own}/", grants.resource(), f"{grants.resource()}/"}
    if not set(values.getlist("resource")) <= known:
        raise InvalidTarget(f"Tokens are issued for {grants.resource()} only.")
