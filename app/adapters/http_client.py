"""HTTP exchanges with services that the operator configured: JSON nodes, price feeds, the faucet.

Sessions of `requests` that never follow a redirect, keep a cookie or read proxy settings; their adapter is the exchange
of forwarded calls. A response is bounded in size and time. A failure names no address, because an address may contain a
key. Requests must be harmless to repeat.
"""

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from app.adapters.upstream_http.exchange import HttpUpstream
from app.adapters.upstream_http.response_reader import MalformedResponse
from app.core import clock
from app.core.foreign import MalformedResponseError
from app.core.strict_json import parse_response
from app.ports.errors import Rejected, Unreachable
from app.ports.upstream import UpstreamRequest, read_beginning

_IDLE_SECONDS = 300.0
"""Networks drop connections that were idle for longer, and nobody is told."""


class _Session(requests.Session):
    def get_redirect_target(self, resp: Any) -> None:
        """Return None: requests reads the body of a redirect, however large, even if it is not followed."""


class _Transport(HTTPAdapter):
    """Sends what requests has prepared, once, and reads the body up to a byte more than the limit."""

    def __init__(self, *, connect_seconds: float, total_seconds: float, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._upstream = HttpUpstream(
            connect_seconds=connect_seconds, read_seconds=total_seconds, idle_seconds=_IDLE_SECONDS
        )

    def send(self, request: requests.PreparedRequest, *_: Any, timeout: Any = 0, **_options: Any) -> Any:
        """Return the response. Raises: Unreachable, Rejected; ConnectionError without a response, RequestException."""
        parts = urlsplit(str(request.url))
        headers = [(name, str(value)) for name, value in request.headers.items() if name != "Content-Length"]
        body = request.body if isinstance(request.body, bytes) else b""
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        try:
            asked = UpstreamRequest(str(request.method), origin, request.path_url, headers, body, Decimal(timeout))
            response = self._upstream.open(asked)
        except (TimeoutError, MalformedResponse):
            raise requests.RequestException from None
        except OSError:
            raise requests.ConnectionError from None
        received, failure = read_beginning(response, self._max_bytes)
        if failure is not None:
            raise requests.RequestException
        raw = urllib3.HTTPResponse(
            io.BytesIO(received), response.headers, response.status, preload_content=False  # type: ignore[arg-type]
        )  # fmt: skip
        return self.build_response(request, raw)


T = TypeVar("T")

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "purser"}


class ResponseTooLargeError(Unreachable):
    """The response exceeds the size limit: a smaller request may help, a repetition does not."""

    def __init__(self) -> None:
        super().__init__("unexpected_answer")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    retry_after_seconds: int = 0

    def json(self) -> Any:
        """Return the parsed body, fractions as Decimal. Raises: Unreachable("unexpected_answer")."""
        try:
            return parse_response(self.body)
        except ValueError:
            raise Unreachable("unexpected_answer") from None

    def read(self, read: Callable[[object], T]) -> T:
        """Return what a reader of `foreign` makes of the body. Raises: Unreachable("unexpected_answer")."""
        try:
            return read(self.json())
        except MalformedResponseError:
            raise Unreachable("unexpected_answer") from None


class HttpClient:
    """One session; usable from many threads, and after a fork."""

    def __init__(
        self,
        *,
        connect_seconds: float,
        total_seconds: float,
        max_bytes: int = 2**22,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._total_seconds = total_seconds
        self._max_bytes = max_bytes
        self._session = _Session()
        self._session.trust_env = False
        self._session.headers = {**_HEADERS, **headers}
        transport = _Transport(connect_seconds=connect_seconds, total_seconds=total_seconds, max_bytes=max_bytes)
        self._session.mount("http://", transport)
        self._session.mount("https://", transport)

    def get(self, url: str, *, query: Mapping[str, str] | None = None) -> HttpResponse:
        """Return the response, whatever its status. Raises: Unreachable."""
        return self._exchange("GET", f"{url}?{urlencode(query)}" if query else url)

    def post(self, url: str, body: bytes, *, repeats: bool = True) -> HttpResponse:
        """Post a JSON text and return the response, whatever its status.

        With `repeats`, once more if the connection breaks, which hides that the first request may have been executed.

        Raises: ResponseTooLargeError; Unreachable, with the reason "not_sent" when no server can have read the
        request.
        """
        return self._exchange("POST", url, body, attempts=2 if repeats else 1)

    def _exchange(self, method: str, url: str, body: bytes = b"", *, attempts: int = 2) -> HttpResponse:
        deadline = time.monotonic() + self._total_seconds
        response, reason = None, "no_answer"
        for attempt in range(attempts):
            try:
                response = self._send(method, url, body, deadline - time.monotonic())
            except requests.ConnectionError:
                # A persistent connection can be closed by the server just as it is used again.
                continue
            except (Unreachable, Rejected):
                # A second attempt that was not sent proves nothing about the first.
                reason = "no_answer" if attempt else "not_sent"
            except (OSError, urllib3.exceptions.HTTPError, ValueError):
                pass
            break
        # Here, because an exception that is raised while another is handled refers to it.
        if response is None:
            raise Unreachable(reason)
        if len(response.body) > self._max_bytes:
            raise ResponseTooLargeError
        return response

    def _send(self, method: str, url: str, body: bytes, seconds: float) -> HttpResponse:
        """Return the response. Raises: Unreachable, Rejected when nothing was sent; ConnectionError, OSError."""
        try:
            user, at, _ = urlsplit(url).netloc.rpartition("@")
            name, _, password = user.partition(":")
            # As bytes, because requests would encode them as Latin-1.
            auth: Any = (unquote_to_bytes(name), unquote_to_bytes(password)) if at else None
            headers = {"Content-Type": "application/json"} if body else {}
            prepared = self._session.prepare_request(requests.Request(method, url, headers, data=body, auth=auth))
            self._session.get_adapter(str(prepared.url))
        except ValueError:
            raise Unreachable("not_sent") from None
        found = self._session.send(prepared, timeout=seconds, allow_redirects=False, stream=True)
        content = found.raw.read(self._max_bytes + 1, decode_content=True)
        return HttpResponse(found.status_code, content, _retry_after_seconds(found.status_code, found.headers))


def _retry_after_seconds(status: int, headers: Mapping[str, str]) -> int:
    """Return when a server wants the next request, in seconds: by `Retry-After`, or the reset of its limit; else 0."""
    names = ["retry-after"]
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        names += ["ratelimit-reset", "x-ratelimit-reset"]
    found = (clock.seconds_until(headers.get(name, "")) for name in names)
    return next((seconds for seconds in found if seconds is not None), 0)
