"""One JSON-RPC endpoint: list batches, learned limits, and the chain that it serves.

An endpoint is used only after it has shown which chain it serves, and again after each outage: another node may
answer then. Its URL may contain a key, so it never enters an exception, a repr or a log line; endpoints are identified
by number.

Outages are logged twice, when they begin and when they end, however many calls fail in between.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from app.adapters.http_client import HttpClient, HttpResponse, ResponseTooLargeError
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcErrorKind, error_of, order_replies
from app.core.chains import ChainName
from app.core.strict_json import parse_response
from app.observability import counters
from app.ports.errors import Unreachable

_log = structlog.get_logger(__name__)


class OutageLog:
    """Remembers whether an outside system is failing; usable from many threads."""

    def __init__(self, subject: str, *, name: str) -> None:
        """Store what fails (the start of the event's name) and which one; neither may contain a secret."""
        self._subject = subject
        self._name = name
        self._lock = threading.Lock()
        self._is_active = False

    def begin(self, reason: str) -> None:
        with self._lock:
            was_active, self._is_active = self._is_active, True
        if not was_active:
            _log.warning(f"{self._subject}_failed", name=self._name, reason=reason)

    def end(self) -> None:
        with self._lock:
            was_active, self._is_active = self._is_active, False
        if was_active:
            _log.info(f"{self._subject}_recovered", name=self._name)


T = TypeVar("T")

_RAISE_LIMIT_AFTER = 20
_WITH_REPLIES = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""Alchemy refuses single calls with 400, QuickNode with 413; the error object is in the body."""

ChainIdentity = Callable[[], RpcCall[None]]
"""Returns a call for what a chain is recognised by; its reader raises EndpointError("wrong_chain")."""


class AdaptiveLimit:
    """A size that an endpoint accepts: halved by a refusal, which may have another cause, and doubled after a while."""

    def __init__(self, maximum: int) -> None:
        self.value = maximum
        self._maximum = maximum
        self._accepted = 0

    def refuse(self, size: int) -> None:
        self.value, self._accepted = min(self.value, max(size // 2, 1)), 0

    def accept(self, size: int) -> None:
        """Record that a size was accepted; only the present limit shows whether more is worth a try."""
        self._accepted += size >= self.value
        if self._accepted >= _RAISE_LIMIT_AFTER:
            self.value, self._accepted = min(self.value * 2, self._maximum), 0


class RpcEndpoint:
    """One endpoint and its state. `log_range` is how many blocks it accepts in one query of logs."""

    def __init__(
        self, http: HttpClient, url: str, identity: ChainIdentity, *, chain: ChainName, number: int, max_batch: int
    ) -> None:
        self._http = http
        self.url = url
        self._identity = identity
        self._is_identified = False
        self._batch_limit = AdaptiveLimit(max_batch)
        self._backoff_until = 0.0
        self._closed_until = 0.0
        self._labels = {"chain": chain.value, "endpoint": str(number)}
        self._outage = OutageLog("rpc_endpoint", name=f"{chain.value} {number}")
        self.number = number
        self.log_range = AdaptiveLimit(2_000)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number})"

    @property
    def batch_limit(self) -> int:
        """Return how many calls it accepts in one request, as far as that is known."""
        return self._batch_limit.value

    @property
    def is_backing_off(self) -> bool:
        return self._backoff_until > time.monotonic()

    def identify(self) -> None:
        """Request the identity of the chain, even if it is known. Raises: EndpointError."""
        self._is_identified = False
        self.run(())

    def ask(self, call: RpcCall[T]) -> T:
        """Run one call that tolerates no error, and return its result. Raises: EndpointError."""
        self.run([call])
        return call.result

    def run(self, calls: Sequence[RpcCall[Any]], *, max_batch: int = sys.maxsize) -> None:
        """Run calls in order, in few HTTP requests. Raises: EndpointError; the results are then void."""
        if self._closed_until > time.monotonic():
            raise EndpointError("closed", perhaps_executed=False, backs_off=False)
        is_identifying = not self._is_identified
        waiting = [self._identity(), *calls] if is_identifying else [*calls]
        sent = False
        while waiting:
            chunk = waiting[: min(max_batch, self._batch_limit.value)]
            if is_identifying and any(call.sends for call in chunk):
                chunk = chunk[:1]  # nothing is broadcast before the chain is known
            sends = any(call.sends for call in chunk)
            try:
                answered = self._exchange(chunk)
            except ResponseTooLargeError:
                if len(chunk) > 1:
                    # Others decide on the size of some responses: it shows nothing about the next batch.
                    max_batch = len(chunk) // 2
                    continue
                chunk[0].set_unreadable("exceeds the size limit")
                answered = 1
            except EndpointError as failure:
                failure.perhaps_executed = sent or (sends and failure.perhaps_executed)
                raise
            sent = sent or sends
            if is_identifying and answered:
                self._is_identified, is_identifying = True, False
            del waiting[:answered]

    def back_off(self, failure: EndpointError) -> None:
        """Move behind the other endpoints for a while, or out of use if the endpoint requested it."""
        if failure.backs_off:
            now = time.monotonic()
            self._is_identified = False
            self._backoff_until = now + 10.0
            if failure.retry_after_seconds:
                self._closed_until = now + min(failure.retry_after_seconds, 60)
        self._outage.begin(failure.reason)
        counters.RPC_FAILURES.labels(**self._labels, reason=failure.reason).inc()

    def recover(self) -> None:
        self._backoff_until = 0.0
        self._outage.end()

    def _exchange(self, chunk: Sequence[RpcCall[Any]]) -> int:
        """Run the calls of one HTTP request, and return how many of them were answered.

        Where one was refused for a reason that does not depend on it, those before it are: no later one counts,
        because a result must not be older than one that was requested before it.

        Raises: EndpointError, ResponseTooLargeError.
        """
        response = self._post(chunk)
        replies = self._replies(chunk, response)
        for answered, (call, reply) in enumerate(zip(chunk, replies, strict=False)):
            call.set_reply(reply)
            kind = None if call.error is None else call.error.kind
            if (kind is RpcErrorKind.RATE_LIMIT and answered) or (kind is RpcErrorKind.BATCH_LIMIT and len(chunk) > 1):
                self._batch_limit.refuse(len(chunk))
                return answered
            call.assert_tolerated(retry_after_seconds=response.retry_after_seconds)
        if replies:
            self._batch_limit.accept(len(chunk))
        return len(replies)

    def _post(self, chunk: Sequence[RpcCall[Any]]) -> HttpResponse:
        started = time.perf_counter()
        try:
            return self._http.post(self.url, _body(chunk), repeats=not any(call.sends for call in chunk))
        except ResponseTooLargeError:
            raise
        except Unreachable as failure:
            raise EndpointError(failure.reason, perhaps_executed=failure.reason != "not_sent") from None
        finally:
            counters.RPC_SECONDS.labels(**self._labels).observe(time.perf_counter() - started)

    def _replies(self, chunk: Sequence[RpcCall[Any]], response: HttpResponse) -> Sequence[Mapping[str, object]]:
        """Return the replies in the order of the calls; none if the batch as a whole was refused."""
        http_failure = EndpointError(
            f"http_{response.status}",
            perhaps_executed=response.status >= HTTPStatus.INTERNAL_SERVER_ERROR,
            retry_after_seconds=response.retry_after_seconds,
        )
        if response.status not in _WITH_REPLIES:
            # 429 and 5xx are the usual ones; public endpoints answer 403 to clients that they blocked.
            raise http_failure
        try:
            # Fractions appear only in figures for people, which are not read here.
            parsed = parse_response(response.body, parse_float=str)
            replies = parsed if isinstance(parsed, list) else [parsed]
            if len(chunk) == 1 or len(replies) != 1:
                return order_replies(replies, expected=len(chunk))
            # The batch as a whole was refused; geth puts that into a list of one, others do not.
            refusal = error_of(replies[0])
            if refusal.kind.is_outage:
                raise EndpointError.of(refusal, retry_after_seconds=response.retry_after_seconds)
        except ValueError:
            if response.status == HTTPStatus.OK:
                raise EndpointError("unexpected_answer") from None
            if len(chunk) == 1:
                raise http_failure from None
        self._batch_limit.refuse(len(chunk))
        return ()


def _body(chunk: Sequence[RpcCall[Any]]) -> bytes:
    requests = [
        {"jsonrpc": "2.0", "id": number, "method": call.method, "params": call.params}
        for number, call in enumerate(chunk)
    ]
    return json.dumps(requests if len(chunk) > 1 else requests[0], separators=(",", ":")).encode()
