"""The endpoints that applications call: metadata (RFC 8414), registration, tokens, revocation and device codes."""

from typing import Any

from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749.errors import InvalidClientError
from flask import Blueprint, Response, jsonify, request
from werkzeug.datastructures import MultiDict

from app.audit_log import actors
from app.core.identifiers import require
from app.db.unit_of_work import unit_of_work
from app.errors import InvalidInput, ServiceError
from app.identity import grants, limits
from app.identity.principal import ALL_SCOPES, KeyKind, Principal
from app.oauth import clients, connections, tokens
from app.oauth.server import Server, assert_target, request_of, response_of
from app.oauth.tokens import TokenKind
from app.state import app_state
from app.web import error_responses
from app.web.client_request import current_request
from app.web.request_bodies import limit_to_keyless, parsed_body

oauth = Blueprint("oauth", __name__)
_WELL_KNOWN = "/.well-known/oauth-authorization-server"


@oauth.get(_WELL_KNOWN)
@oauth.get(f"{_WELL_KNOWN}/mcp")
@oauth.get("/.well-known/openid-configuration")
@oauth.get("/.well-known/openid-configuration/mcp")
@oauth.get("/mcp/.well-known/openid-configuration")
def server_metadata() -> Response:
    """Return the metadata of the authorization server, at every address where clients look for it."""
    url = app_state().settings.public_url
    return jsonify(
        issuer=url, authorization_endpoint=f"{url}/oauth/authorize", token_endpoint=f"{url}/oauth/token",
        registration_endpoint=f"{url}/oauth/register", revocation_endpoint=f"{url}/oauth/revoke",
        device_authorization_endpoint=f"{url}/oauth/device_authorization", scopes_supported=list(ALL_SCOPES),
        response_types_supported=["code"], response_modes_supported=["query"],
        grant_types_supported=list(clients.GRANT_TYPES), token_endpoint_auth_methods_supported=["none"],
        revocation_endpoint_auth_methods_supported=["none"], code_challenge_methods_supported=["S256"],
        authorization_response_iss_parameter_supported=True, client_id_metadata_document_supported=True,
        service_documentation=f"{url}/llms.txt",
    )  # fmt: skip


@oauth.post("/oauth/register")
def register_client() -> Response:
    """Register an application (RFC 7591)."""
    limit_to_keyless(current_request())
    network = limits.client_network(request.remote_addr)
    try:
        registered = clients.register(parsed_body(current_request()), network=network)
    except InvalidInput as failure:
        name = "invalid_redirect_uri" if "redirect_uris" in failure.details.get("fields", {}) else ""
        return _refusal(name or "invalid_client_metadata", failure)
    return response_of(201, registered, {})


@oauth.post("/oauth/token")
def issue_token() -> Response:
    """Exchange a code, a refresh token or a device code for tokens."""
    form = _form()
    client = clients.named(form.get("client_id", ""))
    assert_target(form.getlist("resource"))
    with unit_of_work() as session:
        answer: Response = Server(session, client).create_token_response(request_of("POST", form))
    return answer


@oauth.post("/oauth/revoke")
def revoke_token() -> Response:
    """End the connection of an access or refresh token (RFC 7009)."""
    form = _form()
    with unit_of_work() as session:
        stored = tokens.find(session, TokenKind.REFRESH, form.get("token", ""))
        found = grants.find_of_token(session, form.get("token", ""), grant_id=stored.grant_id if stored else None)
        is_holder = found is None or found.client_id == form.get("client_id")
        if found is not None and is_holder:
            holder = Principal(KeyKind.AGENT, found.id, found.agent_id, found.agent_id, found)
            connections.end(session, actors.agent_actor(holder), found, reason="revoked_by_application")
    if not is_holder:
        raise InvalidClientError("This token was issued to another client.")
    return jsonify({})


@oauth.post("/oauth/device_authorization")
def authorize_device() -> Response:
    """Begin the connection of a program without a browser (RFC 8628)."""
    form, network = _form(), limits.client_network(request.remote_addr)
    app_state().rate_limiter.count("20 per minute;200 per day", "device code", network)
    found = clients.find(form.get("client_id", ""), network=network)
    client = require(found, InvalidClientError("The client is not registered."))
    assert_target(form.getlist("resource"))
    user_code = tokens.new_user_code()
    with unit_of_work() as session:
        text = tokens.add(
            session, TokenKind.DEVICE, client, scope=client.get_allowed_scope(form.get("scope")),
            user_code_digest=tokens.user_code_digest(user_code),
        )  # fmt: skip
    page = f"{app_state().settings.public_url}/oauth/device"
    return jsonify(
        device_code=text, user_code=user_code, interval=tokens.POLL_SECONDS,
        expires_in=int(tokens.LIFETIMES[TokenKind.DEVICE].total_seconds()),
        verification_uri=page, verification_uri_complete=f"{page}?user_code={user_code}",
    )  # fmt: skip


@oauth.errorhandler(OAuth2Error)
def _on_refusal(failure: OAuth2Error) -> Response:
    return response_of(*failure())


@oauth.errorhandler(ServiceError)
def _on_service_error(failure: ServiceError) -> Response:
    return _refusal("invalid_request" if failure.status < 500 else "temporarily_unavailable", failure)  # noqa: PLR2004


@oauth.after_request
def _forbid_caching(response: Response) -> Response:
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _form() -> MultiDict[str, str]:
    """Return the parameters of a request, which is counted if it is refused."""
    limits.count_keyless_request(current_request(), "oauth")
    request.max_content_length = 16 * 1024
    return request.form


def _refusal(name: str, failure: ServiceError) -> Response:
    """Return an error of OAuth, with the members of every error of this service but the first two."""
    body: dict[str, Any] = {**error_responses.error_body(failure), "error": name}
    seconds = failure.retry_after_seconds
    headers = {} if seconds is None else {"Retry-After": str(max(1, seconds))}
    return response_of(failure.status, {**body, "error_description": failure.message}, headers)
