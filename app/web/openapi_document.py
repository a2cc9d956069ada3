"""The OpenAPI document of one application."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from flask_smorest import Api
from werkzeug.utils import cached_property

from app.web.schemas import ErrorBody


class OpenApiDocument:
    """The document of one application, generated when first read: that takes longer than all else at start."""

    def __init__(self, api: Api) -> None:
        self.spec = api.spec
        self.deferred: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._rendered: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        """Return the document. It is shared and must not be changed."""
        with self._lock:
            if self._rendered is None:
                for describe in self.deferred:
                    describe()
                schemas = self.spec.components.schemas
                if "ErrorBody" not in schemas:
                    # Operations refer to it by its name only.
                    self.spec.components.schema("ErrorBody", schema=ErrorBody)
                # flask-smorest's own paging, which no route uses.
                schemas.pop("PaginationMetadataSchema", None)
                self._rendered = self.spec.to_dict()
        return self._rendered

    @cached_property
    def text(self) -> str:
        """The document as it is served."""
        return json.dumps(_without_defaults(self.read()), separators=(",", ":"))


def _without_defaults(node: Any) -> Any:
    """Return a document whose properties name their defaults in words: generators require what has a default."""
    if isinstance(node, list):
        return [_without_defaults(each) for each in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _without_defaults(value) for name, value in node.items()}
    if isinstance(copy.get("properties"), dict):
        copy["properties"] = {name: _explained(each) for name, each in copy["properties"].items()}
    return copy


def _explained(schema: Any) -> Any:
    if not isinstance(schema, dict) or "default" not in schema:
        return schema
    rest = {name: value for name, value in schema.items() if name != "default"}
    if schema["default"] is None:
        return rest
    note = f"Default: `{json.dumps(schema['default'])}`."
    return {**rest, "description": f"{schema['description']} {note}" if schema.get("description") else note}
