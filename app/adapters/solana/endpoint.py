"""One RPC endpoint: typed requests, alone or as a batch, and what was learnt about who answers there.

An endpoint is used only after it has shown the genesis hash of the cluster that we mean, and again after each
failure. Logs and errors name it by its place in the operator's list, for its address may hold a key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

import structlog
from solders.rpc.requests import GetGenesisHash

from app.adapters.http_client import HttpClient, TooLargeError
from app.adapters.json_rpc import MalformedAnswerError, error_of, in_order, parsed
from app.adapters.outage import Outage
from app.adapters.solana.wire import field, text
from app.core import tallies
from app.core.chains import ChainName
from app.ports.errors import Unreachable

T = TypeVar("T")

_log = structlog.get_logger(__name__)

MAX_BATCH = 50
"""Calls in one HTTP request."""
MAX_LARGE_BATCH = 8
"""Calls in one HTTP request where strangers decide how long the answers are: a transaction may be a megabyte."""
_RAISE_LIMIT_AFTER = 50
_REST_SECONDS = 15.0
_LONGEST_CLOSED_SECONDS = 60


class EndpointFailedError(Exception):
    """This endpoint gave no usable answer; another one may.

    `perhaps_executed` is False only when the request certainly was not carried out. `closed_seconds` is how long
    the endpoint asked to be left alone.
    """

    def __init__(self, reason: str, *, perhaps_executed: bool = True, closed_seconds: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.perhaps_executed = perhaps_executed
        self.closed_seconds = closed_seconds


@dataclass(frozen=True, slots=True)
class RpcError:
    """A JSON-RPC error object."""

    code: int
    message: str


UNREADABLE = RpcError(0, "unreadable")
"""Stands for an answer that is larger than is read, or not of the shape that its method promises."""


class Request(Protocol):
    """A typed request of solders."""

    def to_json(self) -> str:
        """Return the JSON-RPC request."""
        ...


class Call(Generic[T]):
    """One request and, once it was run, its answer.

    `read` turns the result into a value or raises MalformedAnswerError. An error that `tolerates` accepts, which
    may be UNREADABLE, is kept in `error`; any other makes the endpoint fail.
    """

    __slots__ = ("_answers", "_read", "_tolerates", "error", "request")

    def __init__(
        self,
        request: Request,
        read: Callable[[object], T],
        *,
        tolerates: Callable[[RpcError], bool] = lambda _error: False,
    ) -> None:
        self.request = request
        self.error: RpcError | None = None
        self._read = read
        self._tolerates = tolerates
        self._answers: list[T] = []

    @property
    def answer(self) -> T:
        """Return the answer of a call that was run and has no `error`."""
        return self._answers[0]

    def take(self, reply: Mapping[str, object]) -> None:
        """Keep a reply. Raises: EndpointFailedError."""
        self.error, self._answers = None, []
        try:
            if reply.get("error") is None:
                self._answers = [self._read(field(reply, "result"))]
                return
            error = _error(reply["error"])
        except MalformedAnswerError as malformed:
            self.fail(str(malformed))
            return
        if not self._tolerates(error):
            # The node is behind, over its limit, or lacks the method. Another may serve.
            raise EndpointFailedError("rpc_error")
        self.error = error

    def fail(self, reason: str) -> None:
        """Note that the answer is UNREADABLE. Raises: EndpointFailedError where that is not tolerated."""
        if not self._tolerates(UNREADABLE):
            raise EndpointFailedError("unexpected_answer")
        _log.warning("rpc_answer_unreadable", request=type(self.request).__name__, reason=reason)
        self.error, self._answers = UNREADABLE, []


class Endpoint:
    """One address and what we know of it."""

    def __init__(self, http: HttpClient, url: str, *, place: int, accepts: Callable[[str], bool]) -> None:
        """Take the address and the rule that tells the right genesis hash; nothing is asked yet."""
        self._http = http
        self._url = url
        self._accepts = accepts
        self._is_verified = False
        self._batch_limit = MAX_BATCH
        self._answered_since_halved = 0
        self._rest_until = 0.0
        self._closed_until = 0.0
        self.place = place
        self._labels = {"chain": ChainName.SOLANA.value, "endpoint": str(place)}
        self._outage = Outage("rpc_endpoint", name=f"solana {place}")

    @property
    def is_resting(self) -> bool:
        """Tell whether it failed a moment ago."""
        return self._rest_until > time.monotonic()

    def run(self, *calls: Call[Any], at_once: int = MAX_BATCH) -> None:
        """Run calls in few HTTP requests. Raises: EndpointFailedError; the answers are then void."""
        if self._closed_until > time.monotonic():
            raise EndpointFailedError("http_429", perhaps_executed=False)
        self._verify()
        waiting = list(calls)
        sent = False
        while waiting:
            chunk = waiting[: min(at_once, self._batch_limit)]
            try:
                answered = self._exchange(chunk)
            except TooLargeError:
                sent = True
                if len(chunk) > 1:
                    at_once = len(chunk) // 2
                    continue
                chunk[0].fail("larger than is read")
                answered = True
            except EndpointFailedError as failure:
                failure.perhaps_executed = failure.perhaps_executed or sent
                raise
            if answered:
                sent = True
                del waiting[: len(chunk)]
                self._raise_limit()

    def serves_our_cluster(self) -> bool:
        """Ask for the genesis hash and compare it. Raises: EndpointFailedError."""
        call = Call(GetGenesisHash(), text)
        try:
            self._exchange([call])
        except TooLargeError:
            raise EndpointFailedError("unexpected_answer") from None
        self._is_verified = self._accepts(call.answer)
        return self._is_verified

    def _verify(self) -> None:
        try:
            if self._is_verified or self.serves_our_cluster():
                return
        except EndpointFailedError as failure:
            failure.perhaps_executed = False
            raise
        raise EndpointFailedError("wrong_chain", perhaps_executed=False)

    def rest(self, failure: EndpointFailedError) -> None:
        """Be asked after the others for a while, or not at all where the endpoint said so."""
        now = time.monotonic()
        # Whatever comes back may be another node, of another cluster.
        self._is_verified = False
        self._rest_until = now + _REST_SECONDS
        if failure.closed_seconds:
            self._closed_until = now + min(failure.closed_seconds, _LONGEST_CLOSED_SECONDS)
        self._outage.begin(failure.reason)
        tallies.count("rpc_failures", **self._labels, reason=failure.reason)

    def recover(self) -> None:
        """Be asked in turn again."""
        self._rest_until = 0.0
        self._outage.end()

    def _exchange(self, chunk: Sequence[Call[Any]]) -> bool:
        """Run one HTTP request's worth of calls; False asks to try again with a smaller `_batch_limit`.

        Raises: EndpointFailedError, TooLargeError.
        """
        started = time.perf_counter_ns()
        try:
            answer = self._http.post(self._url, _body(chunk))
        except TooLargeError:
            raise
        except Unreachable as failure:
            executed = failure.reason != "not_sent"
            raise EndpointFailedError(failure.reason, perhaps_executed=executed) from None
        finally:
            tallies.observe("rpc_seconds", (time.perf_counter_ns() - started) // 1000, **self._labels)
        if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE) and self._halve(
            chunk
        ):
            return False
        if answer.status != HTTPStatus.OK:
            # 429 and 5xx are the usual ones; public endpoints answer 403 to those whom they blocked.
            raise EndpointFailedError(
                f"http_{answer.status}",
                perhaps_executed=answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR,
                closed_seconds=answer.retry_after_seconds,
            )
        try:
            replies = parsed(answer.body)
            if isinstance(replies, dict):
                if len(chunk) > 1:
                    # The batch as a whole was refused: some providers take none, others only short ones.
                    self._halve(chunk)
                    return False
                replies = [replies]
            ordered = in_order(replies, expected=len(chunk))
        except MalformedAnswerError:
            raise EndpointFailedError("unexpected_answer") from None
        for call, reply in zip(chunk, ordered, strict=True):
            call.take(reply)
        return True

    def _halve(self, chunk: Sequence[Call[Any]]) -> bool:
        if len(chunk) == 1:
            return False
        self._batch_limit, self._answered_since_halved = len(chunk) // 2, 0
        return True

    def _raise_limit(self) -> None:
        """Try longer batches again once in a while: a refusal may have had another cause than the length."""
        self._answered_since_halved += 1
        if self._answered_since_halved >= _RAISE_LIMIT_AFTER:
            self._batch_limit, self._answered_since_halved = min(self._batch_limit * 2, MAX_BATCH), 0


def _body(chunk: Sequence[Call[Any]]) -> bytes:
    requests = [json.loads(call.request.to_json()) | {"id": number} for number, call in enumerate(chunk)]
    return json.dumps(requests if len(chunk) > 1 else requests[0], separators=(",", ":")).encode()


def _error(answer: object) -> RpcError:
    code, message, _data = error_of(answer)
    return RpcError(code, message)
