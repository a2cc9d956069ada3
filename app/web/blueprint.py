"""The blueprint of all JSON routes: flask-smorest with a strict parser, a declared guard and documented errors.

A blueprint declares its authentication when it is made; guards run before parsing, so 401 precedes 400. Lists are also
returned as CSV (RFC 4180), which clients and owners open in spreadsheets.
"""

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, TypeVar

import flask
import flask_smorest
import marshmallow as ma
from flask import request
from werkzeug.wrappers import Response

from app.errors import InternalError, InvalidInput, NotFound, PaymentRequired, RateLimited, ServiceError, Unauthorized
from app.state import Application
from app.web import request_bodies
from app.web.client_request import ClientRequest, current_request
from app.web.openapi import OpenApiDocument, error_document
from app.web.request_bodies import StrictParser
from app.web.schemas import Schema

View = TypeVar("View", bound=Callable[..., Any])
ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass(frozen=True, slots=True)
class Guard:
    """Authentication of a blueprint: the accepted OpenAPI security schemes, and the check that raises otherwise."""

    schemes: tuple[str, ...]
    check: Callable[[ClientRequest], object]
    errors: tuple[type[ServiceError], ...] = ()
    """What it raises besides Unauthorized, for the documentation."""


_CREDENTIALS = (
    "X-API-Key, X-Goog-Api-Key, Authorization, X-Upstream-Authorization, X-Payment, Payment-Signature, Api-Key, Apikey,"
    " X-Subscription-Token, X-Cg-Pro-Api-Key, X-Cg-Demo-Api-Key, Ocp-Apim-Subscription-Key, X-Auth-Token,"
    " X-Access-Token"
)

PUBLIC = Guard(schemes=(), check=request_bodies.limit_to_keyless)
"""No key is required, and bodies are small."""


class Blueprint(flask_smorest.Blueprint):  # type: ignore[misc, unused-ignore]
    """A group of routes with one guard."""

    ARGUMENTS_PARSER = StrictParser()

    def __init__(self, name: str, *, guard: Guard, url_prefix: str, cacheable: bool = False) -> None:
        """Make a group; its description is in `descriptions.toml`, by its name."""
        super().__init__(name, __name__, url_prefix=url_prefix)
        self.guard = guard
        self.before_request(self._check)
        if not cacheable:
            self.after_request(set_cache_headers)

    def _check(self) -> None:
        self.guard.check(current_request())

    def route(self, rule: str, **options: Any) -> Callable[[View], View]:
        """Register a view; its function name becomes the operation id.

        Its guard is documented, and the errors of every route, of every guard with a key, and of every path with an id.
        """
        register = super().route(rule, **options)

        def decorate(view: View) -> View:
            document = documentation_section(view, "manual_doc")
            document.setdefault("operationId", view.__name__)
            document.setdefault("security", [{scheme: []} for scheme in self.guard.schemes])
            errors: list[type[ServiceError]] = [InvalidInput, RateLimited, InternalError]
            errors += [*([Unauthorized] if self.guard.schemes else []), *self.guard.errors]
            document_errors(view, errors + ([NotFound] if "<" in rule else []))
            registered: View = register(view)
            return registered

        return decorate

    def arguments(self, schema: type[ma.Schema] | ma.Schema, **options: Any) -> Callable[[View], View]:
        """Parse the body or query of a view; webargs would make the schema anew for each request."""
        declare: Callable[[View], View] = super().arguments(schema() if isinstance(schema, type) else schema, **options)
        return declare

    def register_views_in_doc(
        self, api: Any, app: Application, spec: Any, *, name: str, parameters: list[Any] | None
    ) -> None:
        describe = partial(super().register_views_in_doc, api, app, spec, name=name, parameters=parameters)
        app.state.part(OpenApiDocument).deferred.append(describe)

    def raises(self, *errors: type[ServiceError]) -> Callable[[View], View]:
        return lambda view: document_errors(view, errors)

    def header(self, name: str, description: str) -> Callable[[View], View]:
        return lambda view: document_header(view, name, description)


def document_header(view: View, name: str, description: str, *, pattern: str | None = None) -> View:
    schema = {"type": "string", **({"pattern": pattern} if pattern else {})}
    header = {"in": "header", "name": name, "required": False, "description": description, "schema": schema}
    # In the manual part it would replace the parameters of a query.
    documentation_section(view, "arguments").setdefault("parameters", []).append(header)
    return view


def set_cache_headers(response: ResponseT) -> ResponseT:
    """Forbid caching the response; if an upstream allows it, only for requests with the same credentials.

    `X-API-Key` is not `Authorization`, so RFC 9111 section 3.5 does not keep shared caches from storing a response.
    """
    sent = response.headers.get("Cache-Control")
    if sent is None:
        response.headers.add("Cache-Control", "no-store")
    elif "no-store" not in sent.lower():
        response.headers.add("Vary", _CREDENTIALS)
    return response


def share_with_all(response: ResponseT) -> ResponseT:
    """Let web pages of any origin read a successful response, and caches keep it for a minute."""
    if response.status_code == HTTPStatus.OK:
        response.headers |= {"Access-Control-Allow-Origin": "*", "Cache-Control": "public, max-age=60"}
    return response


def documentation_section(view: Callable[..., Any], part: str) -> dict[str, Any]:
    notes: dict[str, Any] = view.__dict__.setdefault("_apidoc", {})
    section: dict[str, Any] = notes.setdefault(part, {})
    return section


# By draft-payment-discovery-01 of MPP; the price is in the 402 response.
_PAYMENT_INFO = {"offers": [{"intent": "charge", "method": "evm", "amount": None, "description": "In USDC."}]}


def document_errors(view: View, errors: Collection[type[ServiceError]]) -> View:
    manual = documentation_section(view, "manual_doc")
    if PaymentRequired in errors:
        manual["x-payment-info"] = _PAYMENT_INFO
    responses = manual.setdefault("responses", {})
    by_status: dict[str, list[str]] = defaultdict(list)
    for error in errors:
        by_status[str(error("").status)].append(f"`{error.code}`: {error.meaning()}")
    for status, lines in by_status.items():
        present = responses.get(status, {}).get("description", "")
        new = [line for line in lines if line not in present]
        responses[status] = error_document("\n".join(filter(None, [present, *new])))
    return view


CSV = "text/csv"
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def offers_csv(blp: Blueprint, rows: str, shape: type[Schema]) -> Callable[[View], View]:
    """Return the rows of a view's page, by the name of their member, as CSV to clients that prefer it to JSON."""
    schema = shape()

    def decorate(view: View) -> View:
        @wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            page = view(*args, **kwargs)
            if request.accept_mimetypes.best_match(["application/json", CSV]) != CSV:
                return page
            found = page[rows] if isinstance(page, dict) else getattr(page, rows)
            return csv_response(list(schema.fields), schema.dump(found, many=True))

        text = {"type": "string", "description": "The rows of the page, below one with the names of their fields."}
        example = ",".join(schema.fields) + "\r\n"
        document: Callable[[View], View] = blp.alt_response(200, schema=text, content_type=CSV, example=example)
        return document(wrapper)  # type: ignore[arg-type]

    return decorate


def csv_response(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> flask.Response:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return flask.Response(text.getvalue(), mimetype=CSV)


def json_file(parts: Iterator[str], name: str) -> flask.Response:
    headers = {"Content-Disposition": f"attachment; filename={name}.json"}
    return flask.Response(flask.stream_with_context(parts), headers=headers, mimetype="application/json")


def _cell(value: Any) -> str:
    """Return a value as the text of a cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text
