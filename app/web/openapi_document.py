"""The OpenAPI document of one application."""

import json
import threading
from collections.abc import Callable
from typing import Any

from flask_smorest import Api
from werkzeug.utils import cached_property

from app.web.published_document import publish
from app.web.schemas import ErrorBody


class OpenApiDocument:
    """The document of one application, generated when first read: that takes longer than all else at start."""

    def __init__(self, api: Api) -> None:
        self.spec = api.spec
        self.deferred: list[Callable[[], None]] = []
        self.additions: list[Callable[[dict[str, Any]], None]] = []
        """What adds operations that no view of their own serves."""
        self._lock = threading.Lock()
        self._generated: dict[str, Any] | None = None

    def generated(self) -> dict[str, Any]:
        """Return what the views and schemas declare. It is shared and must not be changed."""
        with self._lock:
            if self._generated is None:
                for describe in self.deferred:
                    describe()
                schemas = self.spec.components.schemas
                if "ErrorBody" not in schemas:
                    # Operations refer to it by its name only.
                    self.spec.components.schema("ErrorBody", schema=ErrorBody)
                # flask-smorest's own paging, which no route uses.
                schemas.pop("PaginationMetadataSchema", None)
                self._generated = self.spec.to_dict()
        return self._generated

    @cached_property
    def _published(self) -> dict[str, Any]:
        return publish(self.generated(), self.additions)

    def read(self) -> dict[str, Any]:
        """Return the document as it is published. It is shared and must not be changed."""
        return self._published

    @cached_property
    def text(self) -> str:
        return json.dumps(self.read(), separators=(",", ":"))
