"""The blueprint of every JSON room: flask-smorest with our parser, a declared guard and documented failures.

A blueprint says who may enter when it is made; guards run before parsing, so 401 wins over 400.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import flask_smorest
from flask import Flask

from app.errors import InternalError, InvalidInput, RateLimited, ServiceError
from app.web.documentation import describe_later
from app.web.parsing import StrictParser

View = TypeVar("View", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may enter: the OpenAPI security schemes that open the door, and the check that raises when none does."""

    schemes: tuple[str, ...]
    check: Callable[[], None]


def _everybody() -> None:
    """Let everybody in."""


OPEN = Guard(schemes=(), check=_everybody)
"""An open door, said out loud."""


class Blueprint(flask_smorest.Blueprint):  # type: ignore[misc, unused-ignore]
    """A room's door."""

    ARGUMENTS_PARSER = StrictParser()

    def __init__(
        self, name: str, import_name: str, *, guard: Guard, url_prefix: str, description: str
    ) -> None:
        """Make the door with the guard that stands at every route of it."""
        super().__init__(name, import_name, url_prefix=url_prefix, description=description)
        self.guard = guard
        self.before_request(guard.check)

    def route(self, rule: str, **options: Any) -> Callable[[View], View]:
        """Register a view; its function name is the operation's id, its guard and usual failures are documented."""
        register = super().route(rule, **options)

        def decorate(view: View) -> View:
            document = _document(view, "manual_doc")
            document.setdefault("operationId", view.__name__)
            document.setdefault("security", [{scheme: []} for scheme in self.guard.schemes])
            _describe_failures(view, [InvalidInput, RateLimited, InternalError])
            registered: View = register(view)
            return registered

        return decorate

    def register_views_in_doc(
        self, api: Any, app: Flask, spec: Any, *, name: str, parameters: list[Any] | None
    ) -> None:
        """Put the description off until the document is read."""
        describe = super().register_views_in_doc
        describe_later(app, partial(describe, api, app, spec, name=name, parameters=parameters))

    def raises(self, *failures: type[ServiceError]) -> Callable[[View], View]:
        """Document failures of a view from their classes."""

        def decorate(view: View) -> View:
            _describe_failures(view, list(failures))
            return view

        return decorate

    def header(self, name: str, description: str, *, pattern: str | None = None) -> Callable[[View], View]:
        """Document an optional request header of a view."""

        def decorate(view: View) -> View:
            schema = {"type": "string", **({"pattern": pattern} if pattern else {})}
            parameters = _document(view, "manual_doc").setdefault("parameters", [])
            parameters.append(
                {
                    "in": "header",
                    "name": name,
                    "required": False,
                    "description": description,
                    "schema": schema,
                }
            )
            return view

        return decorate


def _document(view: Callable[..., Any], part: str) -> dict[str, Any]:
    notes: dict[str, Any] = view.__dict__.setdefault("_apidoc", {})
    section: dict[str, Any] = notes.setdefault(part, {})
    return section


def _describe_failures(view: Callable[..., Any], failures: list[type[ServiceError]]) -> None:
    responses = _document(view, "manual_doc").setdefault("responses", {})
    by_status: dict[str, list[str]] = defaultdict(list)
    for failure in failures:
        status = str(failure("").status)
        reason = (failure.__doc__ or "").split("\n", maxsplit=1)[0]
        by_status[status].append(f"`{failure.code}`: {reason}")
    for status, lines in by_status.items():
        present = responses.get(status, {}).get("description", "")
        new = [line for line in lines if line not in present]
        responses[status] = _error_response("\n".join(filter(None, [present, *new])))


def _error_response(description: str) -> Mapping[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
