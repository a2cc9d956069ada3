"""`/mcp`: the Model Context Protocol over HTTP POST, and the metadata of the protected resource (RFC 9728)."""

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from flask import Blueprint, Response, jsonify, make_response

from app.errors import InvalidInput, RouteNotAllowed, Unauthorized
from app.identity import guards, service
from app.identity.principal import ALL_SCOPES
from app.mcp import messages, methods
from app.mcp.messages import PARSE_ERROR, McpError
from app.state import app_state
from app.version import VERSION
from app.web.blueprint import set_cache_headers, share_with_all
from app.web.client_request import ClientRequest, current_request
from app.web.request_bodies import MAX_KEYLESS_VALUES, decoded_body, parse_json

mcp = Blueprint("mcp", __name__)
mcp.after_request(set_cache_headers)
_METADATA_PATH = "/.well-known/oauth-protected-resource"


@mcp.post("/mcp")
def post_message() -> Response:
    """Answer one message of the Model Context Protocol."""
    request = current_request()
    _check_origin(request)
    _authenticate(request)
    found: Any = None
    try:
        found = _parse(request)
        message = messages.read_message(found, request.headers)
        if message.id is None:
            return Response(status=HTTPStatus.ACCEPTED)
        result = methods.answer(request, message)
    except McpError as error:
        request.inner_status = max(error.http_status, HTTPStatus.BAD_REQUEST)
        return _error(error, found)
    request.inner_status = result.get("_meta", {}).get(methods.STATUS_KEY)
    return jsonify({"jsonrpc": "2.0", "id": message.id, "result": result})


@mcp.get(_METADATA_PATH)
@mcp.get(f"{_METADATA_PATH}/mcp")
def resource_metadata() -> Response:
    """Return the metadata of the protected resource: a key or an access token in the header."""
    url = app_state().settings.public_url
    return jsonify(
        resource=f"{url}/mcp", resource_name="Purser", resource_documentation=f"{url}/llms.txt",
        authorization_servers=[url], scopes_supported=list(ALL_SCOPES), bearer_methods_supported=["header"],
    )  # fmt: skip


@mcp.get("/mcp/server-card")
@mcp.get("/.well-known/mcp/server-card.json")
def server_card() -> Response:
    """Return the server card (SEP-2127), by which clients connect without asking for an address."""
    remote = {"supportedProtocolVersions": [messages.STATELESS, *messages.HANDSHAKE]}
    card = json.dumps(_description("v1/server-card", remote))
    return share_with_all(Response(card, mimetype="application/mcp-server-card+json"))


@mcp.get("/server.json")
def registry_entry() -> Response:
    """Return the description with which this server can be published in the MCP registry."""
    return share_with_all(jsonify(_description("2025-12-11/server", {})))


def _description(schema: str, remote: dict[str, Any]) -> dict[str, Any]:
    url = app_state().settings.public_url
    labels = reversed((urlsplit(url).hostname or "localhost").split("."))
    return {
        "$schema": f"https://static.modelcontextprotocol.io/schemas/{schema}.schema.json",
        "name": f"{'.'.join(labels)}/purser", "title": "Purser", "version": VERSION, "websiteUrl": url,
        "description": "Wallets with enforced limits, paid APIs and a catalog of services for AI agents",
        "remotes": [{"type": "streamable-http", "url": f"{url}/mcp", **remote}],
    }  # fmt: skip


@mcp.after_request
def _name_scheme(response: Response) -> Response:
    metadata = f'resource_metadata="{app_state().settings.public_url}{_METADATA_PATH}/mcp"'
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        problem = 'error="invalid_token", ' if "Authorization" in current_request().headers else ""
        response.headers["WWW-Authenticate"] = f'Bearer {problem}{metadata}, scope="{" ".join(ALL_SCOPES)}"'
    elif response.status_code == HTTPStatus.FORBIDDEN and "WWW-Authenticate" in response.headers:
        response.headers["WWW-Authenticate"] += f", {metadata}"
    return response


def _check_origin(request: ClientRequest) -> None:
    """Refuse messages from web pages of other origins (DNS rebinding)."""
    origin, settings = request.headers.get("Origin"), app_state().settings
    if origin is not None and not {origin, "*"} & {settings.public_url, *settings.cors_allowed_origins}:
        raise RouteNotAllowed("Web pages of this Origin may not send messages here.")


def _authenticate(request: ClientRequest) -> None:
    """Refuse a key that is not valid, and count the message before any work; without a key, only if it is refused."""
    keys = guards.presented_keys(request)
    if not keys:
        guards.allow_keyless(request)
        return
    principal = service.find_principal(keys[0])
    if principal is None:
        raise Unauthorized
    guards.authenticate_as(request, principal)


def _parse(request: ClientRequest) -> Any:
    try:
        return parse_json(request, decoded_body(request), max_values=MAX_KEYLESS_VALUES)
    except InvalidInput as error:
        raise McpError(PARSE_ERROR, error.message) from None


def _error(error: McpError, found: Any) -> Response:
    id_ = found.get("id") if isinstance(found, dict) and messages.is_message_id(found.get("id")) else None
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return make_response(jsonify({"jsonrpc": "2.0", "id": id_, "error": body}), error.http_status)
