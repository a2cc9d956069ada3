"""What the scenarios of MCP's conformance suites call, offered through this service's own transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from itsdangerous import BadSignature, URLSafeSerializer

from app.mcp import messages, methods
from app.mcp.messages import HEADER_MISMATCH, INVALID_PARAMS, McpError
from app.mcp.methods import Offer
from app.state import Application
from app.web.client_request import ClientRequest

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
_WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
_MISSING_CAPABILITY = -32021
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_STATES = URLSafeSerializer("conformance")
_IMAGE = {"type": "image", "data": _PNG, "mimeType": "image/png"}
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}

Params = Mapping[str, Any]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _embedded(uri: str, media_type: str, text: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "text": text}}


def _said(text: str) -> dict[str, Any]:
    return {"content": [_text(text)]}


def _elicit(message: str, name: str, kind: str = "string") -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def _sample(text: str) -> dict[str, Any]:
    messages_ = [{"role": "user", "content": _text(text)}]
    return {"method": "sampling/createMessage", "params": {"messages": messages_, "maxTokens": 100}}


_ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}
_NAME = _elicit("What is your name?", "name")
_ROUNDS = [{"step1": _NAME}, {"step2": _elicit("Which is your favourite colour?", "color")}]
# What tools and a prompt ask the client for before they answer.
_INPUTS: dict[str, dict[str, Any]] = {
    "test_input_required_result_elicitation": {"user_name": _NAME},
    "test_input_required_result_sampling": {"capital_question": _sample("What is the capital of France?")},
    "test_input_required_result_list_roots": {"client_roots": _ROOTS},
    "test_input_required_result_request_state": {"confirm": _elicit("Please confirm", "ok", "boolean")},
    "test_input_required_result_tampered_state": {"confirm": _elicit("Please confirm", "ok", "boolean")},
    "test_input_required_result_multiple_inputs": {
        "user_name": _NAME, "greeting": _sample("Generate a greeting"), "client_roots": _ROOTS,
    },
    "test_streaming_elicitation": {"user_name": _NAME},
}  # fmt: skip


def _with_inputs(name: str, params: Params) -> dict[str, Any]:
    """Return the result when the client has answered, and until then what it is asked."""
    asked, given = _INPUTS[name], _responses(params)
    if "requestState" in params:
        _state_of(params)
    if not asked.keys() <= given.keys():
        return {"resultType": "input_required", "inputRequests": asked, "requestState": _STATES.dumps(name)}
    return _said(f"state-ok {json.dumps({key: given[key] for key in asked})}")


def _multi_round(params: Params) -> dict[str, Any]:
    number = _state_of(params) if "requestState" in params else 0
    if number and _ROUNDS[number - 1].keys() <= _responses(params).keys() and number == len(_ROUNDS):
        return _said("Both steps are done.")
    return {"resultType": "input_required", "inputRequests": _ROUNDS[number], "requestState": _STATES.dumps(number + 1)}


def _responses(params: Params) -> dict[str, Any]:
    return {key: value for key, value in (params.get("inputResponses") or {}).items() if isinstance(value, dict)}


def _state_of(params: Params) -> Any:
    try:
        return _STATES.loads(params["requestState"])
    except BadSignature:
        raise McpError(INVALID_PARAMS, "requestState was changed.") from None


def _by_capabilities(params: Params) -> dict[str, Any]:
    asked = {"elicitation": {"user_name": _NAME}, "sampling": {"greeting": _sample("Generate a greeting")}}
    declared = params["_meta"].get(_CAPABILITIES) or {}
    requests = {key: value for kind in asked if kind in declared for key, value in asked[kind].items()}
    return {"resultType": "input_required", "inputRequests": requests} if requests else _said("Nothing to ask.")


def _needs_sampling(params: Params) -> dict[str, Any]:
    if "sampling" not in (params["_meta"].get(_CAPABILITIES) or {}):
        required = {"requiredCapabilities": {"sampling": {}}}
        raise McpError(_MISSING_CAPABILITY, "Missing required client capability", data=required)
    return _said("Sampling is declared.")


def _schema_2020_12() -> dict[str, Any]:
    street = {"street": {"type": "string"}, "city": {"type": "string"}}
    text = {"type": "string"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": street}},
        "properties": {
            "name": text, "address": {"$ref": "#/$defs/address"}, "phone": text, "email": text,
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]}, "else": {"required": ["email"]}, "additionalProperties": False,
    }  # fmt: skip


_MIXED = _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
_TOOLS: dict[str, Callable[[Params], dict[str, Any]]] = {
    "test_simple_text": lambda _: _said("This is a simple text response for testing."),
    "test_image_content": lambda _: {"content": [_IMAGE]},
    "test_audio_content": lambda _: {"content": [{"type": "audio", "data": _WAV, "mimeType": "audio/wav"}]},
    "test_embedded_resource": lambda _: {"content": [_embedded("test://embedded-resource", "text/plain", "Content.")]},
    "test_multiple_content_types": lambda _: {"content": [_text("Multiple content types test:"), _IMAGE, _MIXED]},
    "test_error_handling": lambda _: {**_said("This tool always returns an error."), "isError": True},
    "test_logging_tool": lambda _: _said("Nothing was logged."),
    "json_schema_2020_12_tool": lambda _: _said("Valid."),
    "test_missing_capability": _needs_sampling,
    "test_input_required_result_multi_round": _multi_round,
    "test_input_required_result_capabilities": _by_capabilities,
}
_HEADER_TOOL = "test_header_argument"
_SCHEMAS = {
    "json_schema_2020_12_tool": _schema_2020_12(),
    _HEADER_TOOL: {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
}


def _call_tool(request: ClientRequest, params: Params) -> dict[str, Any]:
    name = params.get("name")
    if name == _HEADER_TOOL:
        region = (params.get("arguments") or {}).get("region")
        if messages.decoded_header(request.headers.get("Mcp-Param-Region")) != region:
            raise McpError(HEADER_MISMATCH, 'The Mcp-Param-Region header differs from "region".')
        return _said(str(region))
    if name in _INPUTS:
        return _with_inputs(name, params)
    return _TOOLS[name](params) if name in _TOOLS else methods.OFFER.methods["tools/call"](request, params)


def _list_tools(request: ClientRequest, params: Params) -> dict[str, Any]:
    listed = methods.OFFER.methods["tools/list"](request, params)
    more = [
        {"name": name, "description": "For the conformance suite.", "inputSchema": _SCHEMAS.get(name, _NO_ARGUMENTS)}
        for name in (*_TOOLS, *_INPUTS, _HEADER_TOOL)
    ]
    return {**listed, "tools": [*listed["tools"], *more]}


def _read_resource(request: ClientRequest, params: Params) -> dict[str, Any]:
    uri = str(params.get("uri"))
    found: dict[str, Any]
    if uri == "test://static-text":
        found = {"mimeType": "text/plain", "text": "This is the content of the static text resource."}
    elif uri == "test://static-binary":
        found = {"mimeType": "image/png", "blob": _PNG}
    elif uri.startswith("test://template/"):
        data = {"id": uri.split("/")[3], "templateTest": True}
        found = {"mimeType": "application/json", "text": json.dumps(data)}
    else:
        return methods.OFFER.methods["resources/read"](request, params)
    return {"contents": [{"uri": uri, **found}], "ttlMs": 0, "cacheScope": "private"}


_PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


def _list_prompts(_request: ClientRequest, _params: Params) -> dict[str, Any]:
    listed = [
        {
            "name": name, "description": "For the conformance suite.",
            "arguments": [{"name": each, "required": True} for each in arguments],
        }
        for name, arguments in _PROMPTS.items()
    ]  # fmt: skip
    return {"prompts": listed, "ttlMs": 0, "cacheScope": "public"}


def _get_prompt(_request: ClientRequest, params: Params) -> dict[str, Any]:
    name, sent = params.get("name"), params.get("arguments") or {}
    if name not in _PROMPTS:
        raise McpError(INVALID_PARAMS, "Unknown prompt")
    if name == "test_input_required_result_prompt" and "user_context" not in _responses(params):
        requests = {"user_context": _elicit("What context should the prompt use?", "context")}
        return {"resultType": "input_required", "inputRequests": requests}
    told = ", ".join(f"{argument}='{sent.get(argument)}'" for argument in _PROMPTS[name])
    first = {
        "test_prompt_with_arguments": _text(f"Prompt with arguments: {told}"),
        "test_prompt_with_embedded_resource": _embedded(str(sent.get("resourceUri")), "text/plain", "Embedded."),
        "test_prompt_with_image": _IMAGE,
    }.get(name, _text("This is a simple prompt for testing."))
    return {"messages": [{"role": "user", "content": first}, {"role": "user", "content": _text("Please read it.")}]}


def _complete(_request: ClientRequest, _params: Params) -> dict[str, Any]:
    return {"completion": {"values": ["paris", "park"], "total": 2, "hasMore": False}}


def _accept(_request: ClientRequest, _params: Params) -> dict[str, Any]:
    return {}


def offer_conformance(app: Application, *, is_stateless: bool) -> None:
    """Offer what the suite needs beside what the service offers; older versions have three more methods."""
    offered = {
        **methods.OFFER.methods, "tools/list": _list_tools, "tools/call": _call_tool, "resources/read": _read_resource,
        "prompts/list": _list_prompts, "prompts/get": _get_prompt, "completion/complete": _complete,
    }  # fmt: skip
    capabilities = {**methods.OFFER.capabilities, "prompts": {}, "completions": {}}
    if not is_stateless:
        offered |= dict.fromkeys(("logging/setLevel", "resources/subscribe", "resources/unsubscribe"), _accept)
        capabilities |= {"logging": {}, "resources": {"subscribe": True}}
    app.state = replace(app.state, parts={**app.state.parts, Offer: Offer(offered, capabilities)})
