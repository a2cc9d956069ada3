"""The API reference at `/docs`: what its pages show, read from the published OpenAPI document."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from werkzeug.utils import cached_property

from app.errors import STATUS
from app.web.openapi import CODES, OpenApiDocument, errors, reference_texts

Node = Mapping[str, Any]
_DEFAULTED = {"wallet_id", "walletId"}
"""What the clients have a default for."""


@dataclass(frozen=True, slots=True)
class ReferenceOperation:
    id: str
    tag: str
    title: str
    method: str
    path: str
    node: Node
    """The operation in the document, with the parameters of its path, and without references to responses."""
    content: Node
    """The first content of the body."""
    headers: Sequence[str]
    """Those that may have the key."""
    files: Mapping[str, str]
    url: str
    """The path and query of the example."""
    arguments: Mapping[str, Any]
    """The example as arguments of the clients' methods."""

    @property
    def href(self) -> str:
        return f"/docs/{self.tag}/{self.id}"

    @property
    def errors(self) -> list[tuple[str, str, str]]:
        responses = self.node["responses"].items()
        return [(status, *found) for status, each in responses for found in CODES.findall(each["description"])]


@dataclass(frozen=True, slots=True)
class ReferenceTag:
    name: str
    title: str
    text: str
    operations: Sequence[ReferenceOperation]


class Reference:
    """The reference of one application, made when first read."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self.pages: dict[str, bytes] = {}
        """The pages that were rendered, by their paths."""

    @cached_property
    def operations(self) -> dict[str, ReferenceOperation]:
        paths = self._document.published["paths"].items()
        found = [self._operation(path, verb, item) for path, item in paths for verb in item if verb != "parameters"]
        return {each.id: each for each in found}

    @cached_property
    def tags(self) -> dict[str, ReferenceTag]:
        found = {tag["name"]: tag["description"] for tag in self._document.published["tags"]}
        operations = self.operations.values()
        return {
            name: ReferenceTag(name, _title(name), text, [each for each in operations if each.tag == name])
            for name, text in found.items()
        }

    @cached_property
    def groups(self) -> dict[str, list[ReferenceTag]]:
        """The tags by the titles of their groups; those that no group names are providers."""
        named = reference_texts()["groups"]
        providers = [tag for name, tag in self.tags.items() if name not in chain(*named.values())]
        return {title: [self.tags[name] for name in names] for title, names in named.items()} | {"Providers": providers}

    @cached_property
    def errors(self) -> list[tuple[HTTPStatus, str, str, str]]:
        """The status, code, meaning and advice of every error, in the order of the statuses."""
        found, advice = errors().items(), reference_texts()["advice"]
        return sorted((HTTPStatus(STATUS[code]), code, each.meaning(), advice[code]) for code, each in found)

    @cached_property
    def schemes(self) -> dict[str, tuple[str, str]]:
        schemes = self._document.published["components"]["securitySchemes"].items()
        return {name: (each.get("name", "Authorization: Bearer"), each["description"]) for name, each in schemes}

    def search(self, text: str) -> list[ReferenceOperation]:
        """Return the operations that have every word of a text, or a word that begins with it, the best first."""
        words = [re.compile(rf"(?<![a-z0-9]){re.escape(each)}") for each in text.lower().split()[:8]]
        found = [([word.search(known) for word in words], each) for each, known in self._searched]
        # Titles come first in the text that is searched.
        ranked = [(sum(match.start() for match in places if match), each) for places, each in found if all(places)]
        return [each for _, each in sorted(ranked, key=lambda rank: rank[0])][:40]

    @cached_property
    def _searched(self) -> list[tuple[ReferenceOperation, str]]:
        found = []
        for each in self.operations.values():
            contents = [each.content, *map(content_of, each.node["responses"].values())]
            names = [*(one["name"] for one in each.node["parameters"]), *chain(*map(self.members, contents))]
            texts = [each.title, each.id, each.path, each.node["summary"], each.node["description"], *names]
            found.append((each, " ".join(texts).lower()))
        return found

    def resolve(self, node: Node) -> Node:
        if "$ref" not in node:
            return node
        found: Any = self._document.published
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        # A description beside a reference is that of the place.
        return {"name": part, **self.resolve(found), **{name: each for name, each in node.items() if name != "$ref"}}

    def members(self, content: Node) -> dict[str, bool]:
        """Return the members of the objects of a body or response, and whether each is required."""
        schema = self.resolve(content.get("schema", {}))
        objects = [self.resolve(each) for each in schema.get("oneOf") or schema.get("anyOf") or [schema]]
        return {name: name in each.get("required", ()) for each in objects for name in each.get("properties", ())}

    def _operation(self, path: str, method: str, item: Node) -> ReferenceOperation:
        node, texts = item[method], reference_texts()
        name, tag, content = node["operationId"], node["tags"][0], content_of(node.get("requestBody", {}))
        parameters = [*item.get("parameters", ()), *node.get("parameters", ())]
        responses = {status: self.resolve(node["responses"][status]) for status in sorted(node["responses"])}
        given = {each["name"]: _example(each, tag) for each in parameters if each.get("required")}
        members, inside = self.members(content), [each for each in given if f"{{{each}}}" in path]
        query = {each: given[each] for each in given if each not in inside} | texts["queries"].get(name, {})
        is_free = any(each["name"] == "query" for each in parameters)
        body = content["example"] if members else {"body": content["example"]} if content else {}
        arguments = given | ({"query": query} if query and is_free else query) | body
        is_deleted = method == "delete" and path.endswith("{wallet_id}")
        omitted = {each for each in _DEFAULTED if not is_deleted and (each in inside or members.get(each))}
        return ReferenceOperation(
            id=name, tag=tag, title=_title(name.removeprefix(f"{tag}_").replace("_platform_", "_")),
            method=method.upper(), path=path, node={**node, "parameters": parameters, "responses": responses},
            content=content, headers=[self.schemes[scheme][0] for scheme in chain.from_iterable(node["security"])],
            files=texts["files"].get(name, {}),
            url=path.format_map(given) + (f"?{urlencode(query)}" if query else ""),
            arguments={each: value for each, value in arguments.items() if each not in omitted},
        )  # fmt: skip


def content_of(body: Node) -> Node:
    """Return the first content of a body or response, or nothing."""
    found: Node = next(iter(body.get("content", {}).values()), {})
    return found


def _title(name: str) -> str:
    words = name.replace("_", " ")
    return str(reference_texts()["titles"].get(name) or f"{words[:1].upper()}{words[1:]}")


def _example(parameter: Node, tag: str) -> str:
    name, values = parameter["name"], reference_texts()["parameters"]
    found, allowed = values.get(f"{tag}.{name}", values.get(name, name)), parameter["schema"].get("enum")
    return str(found if not allowed or found in allowed else allowed[0])


def prose(text: str) -> Markup:
    """Return a text of the document as HTML: what is between backticks is code, and is not taken as HTML."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped first


def json_text(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
