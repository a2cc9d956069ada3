"""The JSON Schemas of tools, taken from the OpenAPI document of the views that they call."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from apispec.ext.marshmallow import MarshmallowPlugin
from apispec.ext.marshmallow.openapi import OpenAPIConverter
from werkzeug.utils import cached_property

from app.mcp.service_calls import ServiceCallBody, ServiceCallResult
from app.mcp.tools import REQUEST_ID, TEXTS, TOOLS, McpTool
from app.web.openapi import OpenApiDocument

_OMITTED = frozenset({"anyOf", "additionalProperties", "example"})
# The views check longer ones; llama.cpp refuses each request with a tool that has one of 2000.
_MAX_LENGTH = 1000
_REQUEST_ID_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]{1,255}$"}


class ToolDescriptions:
    """The descriptions of all tools in one application, made when first read."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document

    @cached_property
    def listed(self) -> list[dict[str, Any]]:
        """The tools as they are listed. They are shared and must not be changed."""
        [plugin] = (each for each in self._document.spec.plugins if isinstance(each, MarshmallowPlugin))
        return describe_tools(self._document.generated(), cast("OpenAPIConverter", plugin.converter))

    @cached_property
    def input_schemas(self) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool["inputSchema"] for tool in self.listed}


def describe_tools(document: Mapping[str, Any], converter: OpenAPIConverter) -> list[dict[str, Any]]:
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
            arguments["properties"][REQUEST_ID] = _REQUEST_ID_SCHEMA
            _explain(arguments, "arguments")
            _explain(result, "result")
            described.append(_describe(tool, _portable(arguments), result))
        else:
            endpoints = [tool.endpoint, *([tool.one[1]] if tool.one else [])]
            used = [operations[each.partition(".")[2]] for each in endpoints]
            described.append(_describe(tool, _input_schema(tool, used, schemas), _output_schema(used, schemas)))
    return described


def _explain(schema: dict[str, Any], kind: str) -> None:
    properties = schema["properties"]
    properties |= {name: {**properties[name], "description": text} for name, text in TEXTS[kind].items()}


def _describe(tool: McpTool, arguments: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    annotations = {
        "readOnlyHint": tool.read_only, "openWorldHint": tool.open_world,
        "destructiveHint": tool.moves_money and not tool.is_additive,
        # A repetition without a request_id executes again after ten minutes.
        "idempotentHint": tool.read_only,
    }  # fmt: skip
    return {
        "name": tool.name, "title": tool.name.replace("_", " ").capitalize(), "description": tool.description,
        "inputSchema": arguments, "outputSchema": result, "annotations": annotations,
    }  # fmt: skip


def _input_schema(tool: McpTool, operations: Sequence[Mapping[str, Any]], schemas: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for index, operation in enumerate(operations):
        for parameter in (*operation["shared"], *operation.get("parameters", [])):
            # The query of `get_purchase` is a credential, which has no place in arguments.
            if parameter["in"] in ({"path"} if tool.name == "get_purchase" else {"path", "query"}):
                note = {"description": parameter["description"]} if "description" in parameter else {}
                properties[parameter["name"]] = {**parameter["schema"], **note}
                # What the view of one object requires makes a call one of it.
                required += [parameter["name"]] if parameter.get("required") and not index else []
        if body := operation.get("requestBody"):
            schema = _inlined(body["content"]["application/json"]["schema"], schemas)
            properties |= schema.get("properties", {})
            required += schema.get("required", [])
    schema = {"type": "object", "properties": properties}
    if tool.moves_money:
        properties[REQUEST_ID] = _REQUEST_ID_SCHEMA
        _explain(schema, "movement")
    return _portable({**schema, "required": required} if required else schema)


def _portable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the converters of all model providers read of a schema.

    They refuse unions with null, formats other than date-time, maps with a schema for their values, and long lengths.
    """
    found = {name: value for name, value in schema.items() if name not in _OMITTED and value is not None}
    for option in schema.get("anyOf", ()):
        found = found if option["type"] == "null" else {**_portable(option), **found}
    if isinstance(found["type"], list):
        [found["type"]] = (each for each in found["type"] if each != "null")
    if found.get("format") != "date-time":
        found.pop("format", None)
    if found["type"] == "object" or found.get("maxLength", 0) > _MAX_LENGTH:
        found.pop("maxLength", None)
    if "properties" in found:
        found["properties"] = {name: _portable(each) for name, each in found["properties"].items()}
    return {**found, "items": _portable(found["items"])} if "items" in found else found


def _output_schema(operations: Sequence[Mapping[str, Any]], schemas: Mapping[str, Any]) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = []
    for status, response in (each for operation in operations for each in operation["responses"].items()):
        content = response.get("content", {}).get("application/json", {}) if str(status).startswith("2") else {}
        if "schema" in content:
            schema = content["schema"]
            kinds += [each for each in schema.get("oneOf", schema.get("anyOf", [schema])) if each not in kinds]
    # Some results match two of them, such as a page without items.
    return {"type": "object", "anyOf": _inlined(kinds, schemas)}


def _inlined(node: Any, schemas: Mapping[str, Any]) -> Any:
    """Return a schema with what it refers to in the place of each reference."""
    if isinstance(node, list):
        return [_inlined(each, schemas) for each in node]
    if not isinstance(node, Mapping):
        return node
    referred = schemas[node["$ref"].removeprefix("#/components/schemas/")] if "$ref" in node else {}
    return {name: _inlined(value, schemas) for name, value in {**referred, **node}.items() if name != "$ref"}
