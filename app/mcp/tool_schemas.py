"""The JSON Schemas of tools, taken from the OpenAPI document of the views that they call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from apispec.ext.marshmallow import MarshmallowPlugin
from apispec.ext.marshmallow.openapi import OpenAPIConverter
from werkzeug.utils import cached_property

from app.mcp.schemas import ServiceCallBody, ServiceCallResult
from app.mcp.tools import REQUEST_ID, TOOLS, McpTool
from app.web.openapi_document import OpenApiDocument

_REF = "#/components/schemas/"
_REQUEST_ID_SCHEMA = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": "^[!-~]{1,255}$",
    "description": "The same for every retry of this action, and new for every new action. Without one, equal "
    "arguments within ten minutes are a retry, and return the first result.",
}
_CALL_ID_SCHEMA = {
    **_REQUEST_ID_SCHEMA,
    "description": "The same for every retry of this call, and new for every new call: a retry returns the first "
    "response and is not charged again.",
}


class ToolDescriptions:
    """The descriptions of all tools in one application, made when first read."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document

    @cached_property
    def listed(self) -> list[dict[str, Any]]:
        """The tools as they are listed. They are shared and must not be changed."""
        [plugin] = (each for each in self._document.spec.plugins if isinstance(each, MarshmallowPlugin))
        return describe_tools(self._document.read(), cast("OpenAPIConverter", plugin.converter))

    @cached_property
    def argument_names(self) -> dict[str, list[str]]:
        """The names of the arguments of each tool."""
        return {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in self.listed}


def describe_tools(document: Mapping[str, Any], converter: OpenAPIConverter) -> list[dict[str, Any]]:
    """Return the descriptions of all tools, from an OpenAPI document."""
    operations = {
        operation["operationId"]: {**operation, "shared": path.get("parameters", [])}
        for path in document["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict) and "operationId" in operation
    }
    schemas = document["components"]["schemas"]
    described = []
    for tool in TOOLS.values():
        if tool.endpoint is None:
            arguments, result = (
                converter.schema2jsonschema(each())  # type: ignore[no-untyped-call]
                for each in (ServiceCallBody, ServiceCallResult)
            )
            arguments["properties"][REQUEST_ID] = _CALL_ID_SCHEMA
            described.append(_describe(tool, {**arguments, "additionalProperties": False}, result))
        else:
            endpoints = [tool.endpoint, *([tool.one[1]] if tool.one else [])]
            used = [operations[each.partition(".")[2]] for each in endpoints]
            described.append(_describe(tool, _input_schema(tool, used, schemas), _output_schema(used, schemas)))
    return described


def _describe(tool: McpTool, arguments: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": tool.name,
        "title": tool.name.replace("_", " ").capitalize(),
        "description": tool.description,
        "inputSchema": arguments,
        "outputSchema": result,
        "annotations": {
            "readOnlyHint": tool.read_only,
            "destructiveHint": tool.moves_money and not tool.is_additive,
            # A repetition without a request_id executes again after ten minutes.
            "idempotentHint": tool.read_only,
            "openWorldHint": tool.open_world,
        },
    }


def _input_schema(tool: McpTool, operations: Sequence[Mapping[str, Any]], schemas: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for index, operation in enumerate(operations):
        for parameter in (*operation["shared"], *operation.get("parameters", [])):
            if parameter["in"] in {"path", "query"} and not _is_token(tool, parameter):
                note = {"description": parameter["description"]} if "description" in parameter else {}
                properties[parameter["name"]] = {**parameter["schema"], **note}
                # What the view of one object requires makes a call one of it.
                required += [parameter["name"]] if parameter.get("required") and not index else []
        if body := operation.get("requestBody"):
            schema = body["content"]["application/json"]["schema"]
            while "$ref" in schema:
                schema = schemas[schema["$ref"].removeprefix(_REF)]
            properties |= schema.get("properties", {})
            required += schema.get("required", [])
    if tool.moves_money:
        properties[REQUEST_ID] = _REQUEST_ID_SCHEMA
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return _self_contained({**schema, "required": required} if required else schema, schemas)


def _is_token(tool: McpTool, parameter: Mapping[str, Any]) -> bool:
    """Return whether a parameter is a credential, which has no place in arguments."""
    return tool.name == "get_purchase" and parameter["in"] == "query"


def _output_schema(operations: Sequence[Mapping[str, Any]], schemas: Mapping[str, Any]) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = []
    responses = [each for operation in operations for each in operation["responses"].items()]
    for status, response in responses:
        content = response.get("content", {}).get("application/json", {}) if str(status).startswith("2") else {}
        if "schema" in content:
            schema = content["schema"]
            kinds += [each for each in schema.get("oneOf", schema.get("anyOf", [schema])) if each not in kinds]
    # Some results match two of them, such as a page without items.
    return _self_contained({"type": "object", "anyOf": kinds}, schemas)


def _self_contained(schema: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the definitions that it refers to."""
    names: list[str] = []
    pending = list(_references(schema))
    while pending:
        if (name := pending.pop()) not in names:
            names.append(name)
            pending += _references(schemas[name])
    definitions = {name: _relocated(schemas[name]) for name in sorted(names)}
    moved: dict[str, Any] = _relocated(schema)
    return {**moved, "$defs": definitions} if definitions else moved


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(reference := node.get("$ref"), str):
            yield reference.removeprefix(_REF)
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _relocated(node: Any) -> Any:
    if isinstance(node, Mapping):
        moved = {name: _relocated(value) for name, value in node.items()}
        if isinstance(reference := node.get("$ref"), str):
            moved["$ref"] = reference.replace(_REF, "#/$defs/")
        return moved
    return [_relocated(value) for value in node] if isinstance(node, list) else node
