"""The target of a request as it was sent, and the methods that are forwarded."""

from __future__ import annotations

from werkzeug.routing import BaseConverter

from app.core.request_target import RequestTarget, parse_target
from app.web.client_request import ClientRequest


class RestConverter(BaseConverter):
    """The rest of a path, which may be empty: `<rest:path>`."""

    regex = ".*"
    part_isolating = False


DOCUMENTED_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Forwarded like those, but not expressible or not useful in an OpenAPI document. Routes need a list; methods in neither
# get a 405: CONNECT, which asks for a tunnel, and unregistered ones.
UNDOCUMENTED_METHODS = (
    "OPTIONS", "TRACE", "QUERY", "SEARCH", "REPORT", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK",
    "PURGE", "LINK", "UNLINK",
)  # fmt: skip


def target_under_prefix(request: ClientRequest, *prefix: str) -> RequestTarget:
    """Return what a request asks for below a prefix of segments. Raises: what `parse_target` does."""
    return parse_target(request.raw_target, request.environ["QUERY_STRING"], *prefix)
