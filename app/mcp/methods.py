"""The methods of the protocol, for all its versions that are served.

Arguments of tools are read as clients of language models send them: nulls, 5.0 for 5, JSON in a text.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from flask import Response

from app.core.strict_json import JsonNumber
from app.errors import InsufficientScope, InvalidInput, ServiceError, Unauthorized
from app.idempotency.service import HEADER
from app.identity import guards
from app.mcp import messages
from app.mcp.messages import INVALID_PARAMS, METHOD_NOT_FOUND, McpError, McpMessage
from app.mcp.service_calls import call_service
from app.mcp.tool_schemas import ToolDescriptions
from app.mcp.tools import REQUEST_ID, RESOURCES, TOOLS
from app.payments.presented import decode_document
from app.payments.x402 import terms
from app.state import app_state
from app.version import VERSION
from app.web import error_responses
from app.web.client_request import ClientRequest
from app.web.request_bodies import MAX_KEYLESS_VALUES, parse_json
from app.web.view_calls import call_view

# n8n adds it to the arguments of every call.
_IGNORED = frozenset({"toolCallId"})
_NUMBER = int | JsonNumber
_TYPES: Mapping[str, Any] = {"array": list, "object": dict, "integer": _NUMBER, "number": _NUMBER}
_MAX_INTEGER = 2**53


def read_arguments(request: ClientRequest, sent: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the types that the schema declares; the view refuses what has another one.

    Raises: InvalidInput for an unknown name; PayloadTooLarge and Overloaded as for a body.
    """
    known, required = schema["properties"], schema.get("required", ())
    if unknown := sorted(sent.keys() - known.keys() - _IGNORED):
        # A misspelt dry_run must not move money.
        problem = f"is no argument of this tool; its arguments are {', '.join(known)}"
        raise InvalidInput.field(unknown[0][:64], problem)
    present = {name: value for name, value in sent.items() if value is not None or name in required}
    return {name: _read(request, value, known[name]["type"]) for name, value in present.items() if name in known}


def _read(request: ClientRequest, value: Any, type_: str) -> Any:
    if isinstance(value, str) and type_ in _TYPES:
        try:
            parsed = parse_json(request, value.encode("utf-8", "surrogatepass"), max_values=MAX_KEYLESS_VALUES)
        except InvalidInput:
            return value
        value = parsed if isinstance(parsed, _TYPES[type_]) else value
    if type_ == "integer" and isinstance(value, JsonNumber) and abs(value.decimal) <= _MAX_INTEGER:
        return int(value.decimal) if value.decimal == value.decimal.to_integral_value() else value
    return value


_PAYMENT_KEY = "x402/payment"
STATUS_KEY = "purser/status"
"""The member of a result's `_meta` with the status that the API would have answered."""
_SERVER_INFO = {"name": "purser", "title": "Purser", "version": VERSION}
_REQUEST_ID = re.compile(r"[!-~]{1,255}", re.ASCII)
_INSTRUCTIONS = (
    "Wallets with enforced spending limits. Amounts are decimal strings. Give every action that moves money a "
    "request_id, and repeat it in retries: it is then executed once. awaiting_approval means that your owner decides: "
    "read get_approvals, and do not repeat the action as a new one. A refusal has a code and the numbers that caused "
    "it."
)


Method = Callable[[ClientRequest, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Offer:
    """What clients are offered: methods beside those of the protocol itself, and the capabilities that name them."""

    methods: Mapping[str, Method]
    capabilities: Mapping[str, Any]


def answer(request: ClientRequest, message: McpMessage) -> dict[str, Any]:
    """Return the result of a request. Raises: McpError, also for what a resource's view refuses; Unauthorized."""
    own = _STATELESS if message.is_stateless else _HANDSHAKE
    method = own.get(message.method) or app_state().part(Offer).methods.get(message.method)
    if method is None:
        status = HTTPStatus.NOT_FOUND if message.is_stateless else HTTPStatus.OK
        raise McpError(METHOD_NOT_FOUND, "Method not found", http_status=status)
    result = method(request, message.params)
    if message.is_stateless:
        result.setdefault("resultType", "complete")
        result.setdefault("_meta", {})[messages.SERVER_INFO_KEY] = _SERVER_INFO
    return result


def _cached(result: dict[str, Any], *, ttl_ms: int = 300_000) -> dict[str, Any]:
    return {**result, "ttlMs": ttl_ms, "cacheScope": "public" if ttl_ms else "private"}


def _initialize(_request: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    if not isinstance(asked, str):
        raise McpError(INVALID_PARAMS, '"protocolVersion" must be a string.')
    return {
        "protocolVersion": asked if asked in messages.HANDSHAKE else messages.HANDSHAKE[0],
        "serverInfo": _SERVER_INFO, **_described(),
    }  # fmt: skip


def _described() -> dict[str, Any]:
    return {"capabilities": app_state().part(Offer).capabilities, "instructions": _INSTRUCTIONS}


def _list_tools(request: ClientRequest, _params: Mapping[str, Any]) -> dict[str, Any]:
    tools = app_state().part(ToolDescriptions).listed
    if request.args.get("output_schemas") != "true":
        tools = [{name: value for name, value in tool.items() if name != "outputSchema"} for tool in tools]
    return _cached({"tools": tools})


def _call_tool(request: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    name, sent = params.get("name"), messages.object_member(params, "arguments")
    tool = TOOLS.get(name) if isinstance(name, str) else None
    if tool is None:
        raise McpError(INVALID_PARAMS, f"Unknown tool; the tools are {', '.join(TOOLS)}.")
    headers = _key_headers(request)
    if not (headers or tool.is_keyless):
        # Clients start to sign in at the status of HTTP, not at a result.
        raise Unauthorized
    try:
        arguments = read_arguments(request, sent, app_state().part(ToolDescriptions).input_schemas[tool.name])
        request_id = arguments.pop(REQUEST_ID, None) if tool.moves_money else None
        if request_id is not None and not (isinstance(request_id, str) and _REQUEST_ID.fullmatch(request_id)):
            raise InvalidInput.field(REQUEST_ID, "must be a text of 1 to 255 visible ASCII characters")
    except ServiceError as error:
        return _result_of(error_responses.error_response(error))
    endpoint = tool.one[1] if tool.one and arguments.get(tool.one[0]) is not None else tool.endpoint
    if endpoint is None:
        payment = params["_meta"].get(_PAYMENT_KEY)
        return _result_of(call_service(request, arguments, key_headers=headers, payment=payment, request_id=request_id))
    if request_id is not None:
        headers[HEADER] = request_id
    response = call_view(request, endpoint, arguments, headers=headers, derives_key=tool.moves_money)
    if response.status_code == HTTPStatus.FORBIDDEN and "WWW-Authenticate" in response.headers:
        # Clients ask the owner for more scopes at the status of HTTP, too.
        raise InsufficientScope(headers={"WWW-Authenticate": response.headers["WWW-Authenticate"]})
    return _result_of(response)


def _key_headers(request: ClientRequest) -> dict[str, str]:
    keys = guards.presented_keys(request)
    return {"X-API-Key": keys[0]} if keys else {}


def _result_of(response: Response) -> dict[str, Any]:
    text = response.get_data(as_text=True)
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": text}], "structuredContent": response.get_json(),
        "isError": response.status_code >= HTTPStatus.BAD_REQUEST,
    }  # fmt: skip
    meta: dict[str, Any] = {STATUS_KEY: response.status_code}
    if "Retry-After" in response.headers:
        meta["purser/retry_after_seconds"] = int(response.headers["Retry-After"])
    if "Idempotent-Replayed" in response.headers:
        meta["purser/replayed"] = True
    if settled := response.headers.get(terms.RESPONSE_HEADER):
        meta[f"{_PAYMENT_KEY}-response"] = decode_document(settled)
    if required := response.headers.get(terms.REQUIRED_HEADER):
        # What x402 defines for a tool that must be paid for, with the code of the refusal.
        kept = {name: value for name, value in response.get_json().items() if name in ("code", "details", "request_id")}
        structured = {**kept, **decode_document(required)}
        result |= {"content": [{"type": "text", "text": json.dumps(structured)}], "structuredContent": structured}
    return {**result, "_meta": meta}


def _list_resources(_request: ClientRequest, _params: Mapping[str, Any]) -> dict[str, Any]:
    base = app_state().settings.public_url
    found = [{"uri": base + path, **each} for path, each in RESOURCES.items()]
    return _cached({"resources": [{name: each[name] for name in each if name != "endpoint"} for each in found]})


def _read_resource(request: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    uri = params.get("uri")
    base = app_state().settings.public_url
    path = uri.removeprefix(base) if isinstance(uri, str) and uri.startswith(base) else ""
    if path not in RESOURCES:
        raise McpError(INVALID_PARAMS, "Resource not found", data={"uri": str(uri)[:256]}, http_status=HTTPStatus.OK)
    response = call_view(request, RESOURCES[path]["endpoint"], {}, headers=_key_headers(request))
    text = response.get_data(as_text=True)
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        refusal = response.get_json()
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            raise Unauthorized(refusal["error"])
        raise McpError(INVALID_PARAMS, refusal["error"], data=refusal, http_status=HTTPStatus.OK)
    return _cached({"contents": [{"uri": uri, "mimeType": RESOURCES[path]["mimeType"], "text": text}]}, ttl_ms=0)


OFFER = Offer(
    {
        "tools/list": _list_tools, "tools/call": _call_tool,
        "resources/list": _list_resources, "resources/read": _read_resource,
        "resources/templates/list": lambda *_: _cached({"resourceTemplates": []}),
    },
    {"tools": {}, "resources": {}},
)  # fmt: skip
_STATELESS: Mapping[str, Method] = {
    "server/discover": lambda *_: _cached({"supportedVersions": list(messages.VERSIONS), **_described()})
}
_HANDSHAKE: Mapping[str, Method] = {"initialize": _initialize, "ping": lambda *_: {}}
