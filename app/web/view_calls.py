"""Calls of the API's views in the place of an HTTP request: the same guards, validation, idempotency and errors."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote, urlencode

from flask import Response, current_app, make_response
from werkzeug.routing import BuildError

from app.core.strict_json import JsonNumber
from app.errors import InvalidInput, NotFound
from app.web import client_request, error_responses
from app.web.client_request import ClientRequest, current_request
from app.web.request_bodies import parsed_body_environ

_KEPT = (
    "HTTP_HOST", "REMOTE_ADDR", "SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL", "gunicorn.socket", "wsgi.errors",
    "wsgi.multiprocess", "wsgi.multithread", "wsgi.run_once", "wsgi.url_scheme", "wsgi.version",
)  # fmt: skip
# With a slash or a dot, an id could lead to another route.
_PATH_VALUE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def call_view(
    request: ClientRequest,
    endpoint: str,
    arguments: Mapping[str, Any],
    *,
    headers: Mapping[str, str],
    derives_key: bool = False,
) -> Response:
    """Call a view with arguments from a message, and return its response or that of its error.

    With `derives_key`, a view that honours idempotency keys derives one from the arguments if none is sent.
    """
    try:
        environ = _environ(request, endpoint, arguments, headers)
    except (InvalidInput, NotFound) as error:
        return error_responses.error_response(error)
    return respond(request, environ, partial(_dispatch, endpoint), route=endpoint, derives_key=derives_key)


def respond(
    request: ClientRequest,
    environ: dict[str, Any],
    serve: Callable[[ClientRequest], Response],
    *,
    route: str,
    derives_key: bool = False,
) -> Response:
    with current_app.request_context(environ):
        inner = current_request()
        inner.id, inner.derives_idempotency_keys = request.id, derives_key
        inner.is_counted, inner.master_caller = True, request.master_caller
        inner.max_content_length = request.max_content_length
        try:
            client_request.check_maintenance(inner)
            response = serve(inner)
        except Exception as error:
            response = error_responses.response_of(error, route=route)
        for callback in inner.on_response:
            callback(response.status_code)
    return response


def refusal_of(answer: Mapping[str, Any]) -> str:
    """Return what is wrong, by the body of an error."""
    details = (answer.get("details") or {}).items()
    problems = [f"{name} {', '.join(texts)}" for name, texts in details if isinstance(texts, list)]
    return "; ".join(problems) or str(answer.get("error"))


def _dispatch(endpoint: str, inner: ClientRequest) -> Response:
    if inner.endpoint != endpoint:
        raise NotFound
    for check in current_app.before_request_funcs.get(inner.blueprint, ()):
        check()
    return make_response(current_app.view_functions[endpoint](**(inner.view_args or {})))


def _environ(
    request: ClientRequest, endpoint: str, arguments: Mapping[str, Any], headers: Mapping[str, str]
) -> dict[str, Any]:
    remaining = dict(arguments)
    [rule] = current_app.url_map.iter_rules(endpoint)
    [method] = (rule.methods or set()) - {"HEAD", "OPTIONS"}
    values = {name: _path_value(name, remaining.pop(name, None)) for name in rule.arguments}
    try:
        path = current_app.url_map.bind("").build(endpoint, values, method=method)
    except BuildError:
        raise NotFound from None
    query = ""
    if method == "GET":
        query = urlencode({name: _query_value(name, value) for name, value in remaining.items() if value is not None})
        remaining = {}
    return environ_of(request, method, path, query, headers=headers, body=parsed_body_environ(remaining))


def environ_of(
    request: ClientRequest, method: str, path: str, query: str, *, headers: Mapping[str, str], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the environ of a request that comes in the place of another; `path` is as it would be sent."""
    environ = {name: request.environ[name] for name in _KEPT if name in request.environ}
    sent = {f"HTTP_{name.upper().replace('-', '_')}": header for name, header in headers.items()}
    return environ | {
        **body, **sent, "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": unquote(path, "latin-1"),
        "QUERY_STRING": query, "REQUEST_URI": f"{path}?{query}" if query else path,
    }  # fmt: skip


def _path_value(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput.field(name, "is required, as a string")
    if not _PATH_VALUE.fullmatch(value):
        raise NotFound
    return value


def _query_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, (str, int)):
        return str(value).encode("utf-8", "replace").decode()
    raise InvalidInput.field(name, "must be a string, a number or a boolean")
