"""The request of a client, as an object that functions take instead of Flask's global `request`."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

import flask
from werkzeug.datastructures import EnvironHeaders

from app.config import Settings
from app.core.identifiers import new_id
from app.core.ip_ranges import is_loopback
from app.errors import InvalidInput, RouteNotAllowed
from app.observability.tracing import Span
from server.client_socket import ClientSocket, client_socket_of

SIGNATURE_HEADER = "X-Gateway-Signature"
"""With it, a service verifies that this one has sent a request."""
_UNPREFIXED = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
_ABSOLUTE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# A name or an IP address, and a port; urlsplit ignores what follows a port that is none.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?", re.ASCII)


class RequestHeaders(EnvironHeaders):
    """The headers of a request; unlike the base class, a look-up of an absent one raises no exception internally."""

    def get(self, key: str, default: Any = None, type: Callable[[str], Any] | None = None) -> Any:  # type: ignore[override] # noqa: A002 - the library's own signature
        found = self.environ.get(_variable(key))
        return default if found is None else found if type is None else super().get(key, default, type)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and _variable(key) in self.environ

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(
            [
                (name, value)
                for variable, value in self.environ.items()
                if (name := _name(variable)) and (value or variable not in _UNPREFIXED)
            ]
        )


class ClientRequest(flask.Request):
    """One request, and what is noted about it until its response is sent."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.headers = RequestHeaders(self.environ)
        self.id = new_id()
        self.started_ns = time.perf_counter_ns()
        self.span: Span | None = None
        self.on_response: list[Callable[[int], None]] = []
        """Called with the status of the response, before it is sent."""
        self.derives_idempotency_keys = False
        """Whether an idempotency key that was not sent is derived from the body."""
        self.master_caller: Any = None
        """The master key that a page of the console acts for; no header says so."""
        self.is_counted = False
        """Whether a rate limit has counted this request, or the one that it comes in place of."""
        self.inner_status: int | None = None
        """The status of what a message asked for, if its own response does not show it."""
        self.sdk_keys: list[str] | None = None
        """The API keys in it, once they were looked for (`app.identity.guards`)."""
        self.connection: ClientSocket | None = client_socket_of(self.environ)
        """The client's connection; None in tests, which have none."""

    @property
    def raw_target(self) -> str:
        """Path and query as they were sent; `path` is decoded."""
        line = request_line_target(self.environ)
        return _ABSOLUTE.sub("", line, count=1) if not line.startswith("/") else line


@lru_cache(maxsize=1024)
def _variable(name: str) -> str:
    variable = name.upper().replace("-", "_")
    return variable if variable in _UNPREFIXED else f"HTTP_{variable}"


@lru_cache(maxsize=1024)
def _name(variable: str) -> str:
    """Return the header in a variable of the WSGI environment; nothing if that is no header."""
    name = variable if variable in _UNPREFIXED else variable.removeprefix("HTTP_")
    is_header = _variable(name) == variable
    return name.replace("_", "-").title() if is_header else ""


def request_line_target(environ: Mapping[str, Any]) -> str:
    """Return the target in the request line, which servers give one name or the other."""
    target: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    return target


def current_request() -> ClientRequest:
    return cast("ClientRequest", flask.request._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way


def host_check(settings: Settings) -> Callable[[ClientRequest], None]:
    """Return the check that refuses requests for other hosts in the sandbox; outside it, it does nothing.

    A web page can make its own host name resolve to 127.0.0.1 (DNS rebinding). Browsers then treat the sandbox as the
    same origin and let the page read every response; only the Host header distinguishes such a request.
    """
    own_host = urlsplit(settings.public_url).hostname

    def check(request: ClientRequest) -> None:
        sent = request.environ.get("HTTP_HOST", "")
        # Browsers always send it; HTTP/1.0 clients need not.
        if settings.is_sandbox and sent and not is_allowed_host(sent, own_host):
            raise RouteNotAllowed(
                "This sandbox accepts only requests with the Host 127.0.0.1, localhost or the host of BASE_URL."
                " Use one of them, or set BASE_URL to this address (and SANDBOX_PUBLIC=1)."
            )

    return check


def reject_loops(request: ClientRequest) -> None:
    """Refuse a request that the proxy itself has sent, to a service that points to this one. Raises: InvalidInput."""
    if SIGNATURE_HEADER in request.headers:
        raise InvalidInput(
            f"This request was sent by the proxy itself ({SIGNATURE_HEADER} is set): it must not call itself."
        )


def is_allowed_host(host_header: str, own_host: str | None) -> bool:
    found = _HOST.fullmatch(host_header)
    if found is None:
        return False
    host = found[1].strip("[]").lower()
    return host == own_host or is_loopback(host)
