"""JSON-RPC messages of the Model Context Protocol: accepted messages and versions, and errors."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from werkzeug.datastructures import Headers

STATELESS = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
VERSIONS = (STATELESS, *HANDSHAKE)
_PREFIX = "io.modelcontextprotocol/"
_VERSION_KEY, _CAPABILITIES_KEY = f"{_PREFIX}protocolVersion", f"{_PREFIX}clientCapabilities"
SERVER_INFO_KEY = f"{_PREFIX}serverInfo"
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_MAX_ID = 2**53
_MAX_ID_CHARS = 256

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022


class McpError(Exception):
    """A refusal by the protocol, before any tool; `http_status` is its status."""

    def __init__(self, code: int, message: str, *, http_status: int = 400, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.http_status, self.data = code, message, http_status, data


@dataclass(frozen=True, slots=True)
class McpMessage:
    """A request, or a notification, which has no id."""

    id: str | int | None
    method: str
    params: Mapping[str, Any]
    is_stateless: bool


def read_message(found: Any, headers: Headers) -> McpMessage:
    """Check a decoded message and its headers. Raises: McpError."""
    if not isinstance(found, dict):
        raise McpError(INVALID_REQUEST, "Send one JSON-RPC message as an object; batches are not accepted.")
    method = found.get("method")
    if found.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise McpError(INVALID_REQUEST, 'A message has "jsonrpc": "2.0" and a "method".')
    if "id" in found and not is_message_id(found["id"]):
        raise McpError(INVALID_REQUEST, f"An id is a string of at most {_MAX_ID_CHARS} characters, or an integer.")
    params = object_member(found, "params")
    params["_meta"] = meta = object_member(params, "_meta")
    version = headers.get("MCP-Protocol-Version")
    is_stateless = version == STATELESS or meta.get(_VERSION_KEY) is not None
    if is_stateless and "id" in found:
        _check_stateless(method, params, headers)
    elif version is not None and version not in VERSIONS and method != "initialize":
        raise _unsupported(version)
    return McpMessage(found.get("id"), method, params, is_stateless)


def object_member(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an optional member that must be an object; null counts as absent. Raises: McpError."""
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise McpError(INVALID_PARAMS, f'"{name}" must be an object.')
    return value


def is_message_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_ID_CHARS
    return type(value) is int and abs(value) <= _MAX_ID


def _check_stateless(method: str, params: Mapping[str, Any], headers: Headers) -> None:
    """Check what each request of the stateless version carries, in the order of its specification."""
    version, capabilities = (params["_meta"].get(key) for key in (_VERSION_KEY, _CAPABILITIES_KEY))
    if not isinstance(version, str) or not isinstance(capabilities, dict):
        problem = f"must have {_VERSION_KEY}, a string, and {_CAPABILITIES_KEY}, an object"
        raise McpError(INVALID_PARAMS, f"params._meta {problem}.")
    if headers.get("MCP-Protocol-Version") != version:
        raise McpError(HEADER_MISMATCH, f"The MCP-Protocol-Version header differs from {_VERSION_KEY}.")
    if headers.get("Mcp-Method") != method:
        raise McpError(HEADER_MISMATCH, "The Mcp-Method header differs from the method.")
    if method in _NAMED_BY:
        name = params.get(_NAMED_BY[method])
        if name is not None and decoded_header(headers.get("Mcp-Name")) != name:
            raise McpError(HEADER_MISMATCH, f'The Mcp-Name header differs from "{_NAMED_BY[method]}".')
    if version != STATELESS:
        raise _unsupported(version)


def _unsupported(version: str) -> McpError:
    data = {"supported": list(VERSIONS), "requested": version[:64]}
    return McpError(UNSUPPORTED_VERSION, "Unsupported protocol version", data=data)


def decoded_header(header: str | None) -> str | None:
    """Return the value of a header that is in base64 where it is not plain ASCII."""
    if header is None or not (header.startswith("=?base64?") and header.endswith("?=")):
        return header
    try:
        return base64.b64decode(header[9:-2], validate=True).decode()
    except ValueError:
        return None
