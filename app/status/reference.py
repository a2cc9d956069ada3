"""The OpenAPI document as values that a template can show: references resolved, failures by code.

Pure: a document in, values out. It knows nothing of rooms, routes or Flask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.status import examples

_METHODS = ("get", "post", "put", "patch", "delete")
_SCHEMAS = "#/components/schemas/"
_ERROR = f"{_SCHEMAS}Error"
_CODED = re.compile(r"`([A-Z_]+)`: (.*)")
_FIRST_FAILING_STATUS = 400


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, a header or a member of a body, with what is inside it."""

    name: str
    type: str
    required: bool
    description: str = ""
    facts: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a body may look like."""

    description: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is not a failure; one of several shapes where there are several."""

    status: str
    description: str
    shapes: tuple[Shape, ...]
    headers: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure by its stable code."""

    status: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    keys: tuple[str, ...]
    parameters: tuple[Field, ...]
    body: Shape | None
    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    example: str


@dataclass(frozen=True, slots=True)
class Room:
    """The operations of one tag."""

    name: str
    description: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """A way to say who is calling."""

    header: str
    description: str


@dataclass(frozen=True, slots=True)
class Reference:
    """The whole document."""

    title: str
    version: str
    description: str
    url: str
    keys: tuple[Key, ...]
    error: tuple[Field, ...]
    rooms: tuple[Room, ...]

    @property
    def failures(self) -> list[Failure]:
        """Return every code that any operation answers with, once, by status."""
        found = {
            failure.code: failure
            for room in self.rooms
            for operation in room.operations
            for failure in operation.failures
        }
        return sorted(found.values(), key=lambda failure: (failure.status, failure.code))


def read(document: Mapping[str, Any]) -> Reference:
    """Read an OpenAPI 3.1 document."""
    return _Reader(document).reference()


class _Reader:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._url = str(document["servers"][0]["url"])
        self._keys = {
            # Bearer tokens have a header of their own, which the document does not name.
            name: Key(scheme.get("name", "Authorization"), scheme.get("description", ""))
            for name, scheme in document["components"].get("securitySchemes", {}).items()
        }

    def reference(self) -> Reference:
        info = self._document["info"]
        by_tag: dict[str, list[Operation]] = {tag["name"]: [] for tag in self._document.get("tags", [])}
        used: set[str] = set()
        for path, methods in self._document["paths"].items():
            for method in _METHODS:
                if method in methods:
                    operation = self._operation(method, path, methods)
                    used.update(operation.keys)
                    by_tag[methods[method]["tags"][0]].append(operation)
        rooms = (
            Room(tag["name"], tag.get("description", ""), tuple(by_tag[tag["name"]]))
            for tag in self._document.get("tags", [])
        )
        return Reference(
            title=info["title"],
            version=info["version"],
            description=info.get("description", ""),
            url=self._url,
            keys=tuple(key for key in self._keys.values() if key.header in used),
            error=self._fields({"$ref": _ERROR}),
            rooms=tuple(room for room in rooms if room.operations),
        )

    def _operation(self, method: str, path: str, methods: Mapping[str, Any]) -> Operation:
        raw = methods[method]
        given = (*methods.get("parameters", ()), *raw.get("parameters", ()))
        parameters = [self._resolved(each) for each in given]
        keys = tuple(self._keys[name].header for choice in raw.get("security", ()) for name in choice)
        content = self._resolved(raw.get("requestBody", {})).get("content", {})
        body = content.get("application/json", {}).get("schema")
        return Operation(
            id=raw["operationId"],
            method=method.upper(),
            path=path,
            summary=raw.get("summary", ""),
            description=raw.get("description", ""),
            keys=keys,
            parameters=tuple(self._parameter(each) for each in parameters),
            body=None if body is None else self._shape(body),
            answers=tuple(self._answers(raw["responses"])),
            failures=tuple(self._failures(raw["responses"])),
            example=examples.curl(
                method.upper(),
                self._url + path,
                keys=keys,
                headers=[each["name"] for each in parameters if each["in"] == "header"],
                query=[each["name"] for each in parameters if each["in"] == "query" and each.get("required")],
                body=None if body is None else self._resolved(body),
            ),
        )

    def _parameter(self, raw: Mapping[str, Any]) -> Field:
        described = {**raw.get("schema", {}), "description": raw.get("description", "")}
        return self._field(raw["name"], described, required=bool(raw.get("required")), place=raw["in"])

    def _answers(self, responses: Mapping[str, Any]) -> Iterator[Answer]:
        for status, raw in _by_status(responses):
            response = self._resolved(raw)
            schema = _json_schema(response)
            if schema is not None and schema.get("$ref") == _ERROR:
                continue
            choices = [] if schema is None else schema.get("oneOf", [schema])
            headers = response.get("headers", {}) if int(status) < _FIRST_FAILING_STATUS else {}
            yield Answer(
                status,
                response.get("description", ""),
                tuple(self._shape(choice) for choice in choices),
                tuple(self._header(name, self._resolved(header)) for name, header in headers.items()),
            )

    def _header(self, name: str, raw: Mapping[str, Any]) -> Field:
        described = {**raw.get("schema", {}), "description": raw.get("description", "")}
        return self._field(name, described, required=True)

    def _failures(self, responses: Mapping[str, Any]) -> Iterator[Failure]:
        for status, raw in _by_status(responses):
            response = self._resolved(raw)
            if (_json_schema(response) or {}).get("$ref") != _ERROR:
                continue
            for line in response.get("description", "").splitlines():
                coded = _CODED.fullmatch(line)
                if coded:
                    yield Failure(status, coded[1], coded[2])

    def _shape(self, schema: Mapping[str, Any]) -> Shape:
        return Shape(self._resolved(schema).get("description", ""), self._fields(schema))

    def _fields(
        self, schema: Mapping[str, Any], *, inside: frozenset[str] = frozenset()
    ) -> tuple[Field, ...]:
        """Return the members of an object, of the objects in an array, or of an object's values."""
        name = schema.get("$ref", "")
        if name in inside:
            return ()
        inside = inside | ({name} if name else set())
        schema = self._resolved(schema)
        for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
            if choice.get("type") != "null":
                return self._fields(choice, inside=inside)
        if "items" in schema:
            return self._fields(schema["items"], inside=inside)
        values = schema.get("additionalProperties")
        if isinstance(values, Mapping) and values:
            return (self._field("{key}", values, required=True, inside=inside),)
        required = schema.get("required", ())
        return tuple(
            self._field(member, inner, required=member in required, inside=inside)
            for member, inner in schema.get("properties", {}).items()
        )

    def _field(
        self,
        name: str,
        schema: Mapping[str, Any],
        *,
        required: bool,
        place: str = "",
        inside: frozenset[str] = frozenset(),
    ) -> Field:
        return Field(
            name,
            self._type(schema),
            required,
            schema.get("description", ""),
            tuple(_facts(schema)),
            self._fields(schema, inside=inside),
            place,
        )

    def _type(self, schema: Mapping[str, Any]) -> str:
        resolved = self._resolved(schema)
        choices = [*resolved.get("anyOf", ()), *resolved.get("allOf", ())]
        if choices:
            return " or ".join(dict.fromkeys(self._type(choice) for choice in choices))
        types = resolved.get("type", "any")
        names = [types] if isinstance(types, str) else list(types)
        if "array" in names:
            names[names.index("array")] = f"array of {self._type(resolved.get('items', {}))}"
        if resolved.get("format") and "string" in names:
            names[names.index("string")] = f"string ({resolved['format']})"
        return " or ".join(names)

    def _resolved(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = node.get("$ref")
        if reference is None:
            return node
        found: Any = self._document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return {**self._resolved(found), **{name: value for name, value in node.items() if name != "$ref"}}


def _by_status(responses: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return sorted((status, response) for status, response in responses.items() if status.isdigit())


def _json_schema(response: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema: Mapping[str, Any] | None = response.get("content", {}).get("application/json", {}).get("schema")
    return schema


def _facts(schema: Mapping[str, Any]) -> Iterator[str]:
    values = [value for value in schema.get("enum", ()) if value is not None]
    if values:
        yield f"one of {', '.join(f'`{value}`' for value in values)}"
    if schema.get("default") is not None:
        yield f"default `{str(schema['default']).lower()}`"
    if "minimum" in schema and "maximum" in schema:
        yield f"{schema['minimum']} to {schema['maximum']}"
