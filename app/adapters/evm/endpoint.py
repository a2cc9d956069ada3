"""One JSON-RPC endpoint: HTTP exchanges, list batches, and a strict look at what comes back.

The URL may hold a key, so it never enters an exception, a repr or a log line; endpoints go by their numbers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Generic, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
)

from app.adapters.evm.wire import quantity
from app.adapters.json_rpc import MalformedAnswerError, error_of, in_order, parsed
from app.core import tallies
from app.core.chains import ChainName
from app.core.unit_of_work import assert_no_unit

T = TypeVar("T")

MAX_BATCH = 100
_MAX_ANSWER_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**16
_POOL_CONNECTIONS = 512
_LOG_RANGE = 2_000
_RATE_LIMITED = ("rate limit", "too many requests", "limit exceeded", "capacity", "throttl", "quota")
"""Refusals to work, whatever was asked: words of Infura (-32005), Alchemy, QuickNode and dRPC."""


@dataclass(frozen=True, slots=True)
class RpcError:
    """An error object as JSON-RPC 2.0 defines it; `data` is present when a contract reverted."""

    code: int
    message: str
    data: str | None = None

    @property
    def is_rate_limit(self) -> bool:
        """Tell whether the endpoint refused to work, whatever the request was."""
        text = self.message.lower()
        if self.data is not None or "revert" in text:
            return False  # a contract wrote these words
        return self.code in (429, -32005) or any(words in text for words in _RATE_LIMITED)


class EndpointFailed(Exception):
    """This endpoint gave no usable answer; another one may.

    `perhaps_executed` is False only when the request certainly did not reach a node; `rests` tells whether
    the endpoint should be spared for a while.
    """

    def __init__(self, reason: str, *, perhaps_executed: bool, rests: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.perhaps_executed = perhaps_executed
        self.rests = rests


class Call(Generic[T]):
    """One JSON-RPC call and, once it was run, its answer.

    `read` turns the result into a value or raises MalformedAnswerError. An error object that `tolerates`
    accepts is kept in `error`; any other makes the endpoint fail.
    """

    __slots__ = ("_answers", "_read", "_tolerates", "error", "method", "params")

    def __init__(
        self,
        method: str,
        params: Sequence[object],
        *,
        read: Callable[[object], T],
        tolerates: Callable[[RpcError], bool] | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.error: RpcError | None = None
        self._read = read
        self._tolerates = tolerates
        self._answers: list[T] = []

    @property
    def answer(self) -> T:
        """Return the answer of a call that was run and has no `error`."""
        return self._answers[0]

    def take(self, reply: Mapping[str, object]) -> None:
        """Keep a reply. Raises: EndpointFailed, MalformedAnswerError."""
        self.error, self._answers = None, []
        error = reply.get("error")
        if error is None:
            if "result" not in reply:
                raise MalformedAnswerError("expected a result")
            self._answers = [self._read(reply["result"])]
            return
        self.error = _error(error)
        if self._tolerates is None or self.error.is_rate_limit or not self._tolerates(self.error):
            limited = self.error.is_rate_limit
            raise EndpointFailed("refused", perhaps_executed=not limited, rests=limited)


class Http:
    """Connections of this process to endpoints; threads may share it, and making it opens no socket."""

    def __init__(self, *, connect_seconds: float, read_seconds: float) -> None:
        """Take the time to wait for a connection and for an answer."""
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._session = _session()
        self._process = os.getpid()
        self._blanks: dict[str, requests.PreparedRequest] = {}

    def post(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body. Raises: EndpointFailed."""
        assert_no_unit()
        session = self._own_session()
        # The foreign exceptions name the URL; they must not even be the context of ours.
        perhaps_executed = False
        for attempt in (1, 2):
            try:
                return self._send(session, url, body)
            except (requests.RequestException, HTTPError, OSError, ValueError) as error:
                # That the second try certainly went nowhere says nothing about the first.
                perhaps_executed = perhaps_executed or not _never_sent(error)
                # A kept connection may be closed by the node just as it is used again; calls bear repeating.
                if attempt == 1 and _cut_off(error):
                    continue
                break
        raise EndpointFailed("no_answer", perhaps_executed=perhaps_executed)

    def _send(self, session: requests.Session, url: str, body: bytes) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._read_seconds
        timeout = (self._connect_seconds, self._read_seconds)
        request = self._request(session, url, body)
        with session.send(
            request, timeout=timeout, allow_redirects=False, stream=True, proxies={}
        ) as response:
            received = bytearray()
            while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
                received += chunk
                if len(received) > _MAX_ANSWER_BYTES or time.monotonic() > deadline:
                    raise ValueError("too long")
            return response.status_code, bytes(received)

    def _request(self, session: requests.Session, url: str, body: bytes) -> requests.PreparedRequest:
        # All but the body is the same each time, and preparing it takes a fifth of the whole exchange.
        if (blank := self._blanks.get(url)) is None:
            headers = {"Content-Type": "application/json"}
            blank = self._blanks[url] = session.prepare_request(
                requests.Request("POST", url, headers=headers)
            )
        request = blank.copy()
        request.prepare_body(body, None)
        return request

    def _own_session(self) -> requests.Session:
        # Sockets must not be shared with the process that this one was forked from.
        if self._process != os.getpid():
            self._session, self._process = _session(), os.getpid()
        return self._session


class Endpoint:
    """One endpoint with what was learnt about it: batch size, range of logs, whether it serves our chain."""

    def __init__(self, http: Http, url: str, *, number: int, chain_id: int, chain: ChainName) -> None:
        """Take the URL; nothing is asked before the first call."""
        self._http = http
        self._url = url
        self._chain_id = chain_id
        self._identified = False
        self.number = number
        self._labels = {"chain": chain.value, "endpoint": str(number)}
        self.batch_limit = MAX_BATCH
        self.log_range = _LOG_RANGE
        self.resting_until = 0.0

    def __repr__(self) -> str:
        return f"Endpoint({self.number})"

    def run(self, calls: Sequence[Call[T]]) -> None:
        """Run calls in order, in few HTTP requests. Raises: EndpointFailed; the answers are then void."""
        waiting: list[Call[T] | Call[int]] = list(calls)
        identity = Call("eth_chainId", (), read=quantity)
        if not self._identified:
            waiting.insert(0, identity)
        while waiting:
            chunk = waiting[: self.batch_limit]
            if not self._exchange(chunk):
                continue
            del waiting[: len(chunk)]
            if not self._identified:
                self._identified = identity.answer == self._chain_id
            if not self._identified:
                raise EndpointFailed("wrong_chain", perhaps_executed=False)

    def chain_id(self) -> int:
        """Ask which chain the endpoint serves. Raises: EndpointFailed."""
        call = Call("eth_chainId", (), read=quantity)
        self._exchange([call])
        return call.answer

    def _exchange(self, chunk: Sequence[Call[T] | Call[int]]) -> bool:
        """Run one HTTP request's worth of calls; False asks to try again with the smaller `batch_limit`."""
        requested = [
            {"jsonrpc": "2.0", "id": number, "method": call.method, "params": call.params}
            for number, call in enumerate(chunk)
        ]
        body = json.dumps(requested if len(chunk) > 1 else requested[0], separators=(",", ":")).encode()
        started = time.perf_counter_ns()
        try:
            status, received = self._http.post(self._url, body)
        finally:
            tallies.observe("rpc_seconds", (time.perf_counter_ns() - started) // 1000, **self._labels)
        if status == requests.codes.request_entity_too_large and self._smaller(chunk):
            return False
        if status not in (requests.codes.ok, requests.codes.bad_request):
            raise EndpointFailed("http_status", perhaps_executed=status >= requests.codes.server_error)
        try:
            replies = parsed(received)
            if isinstance(replies, dict):
                replies = [replies]
                if len(chunk) > 1:
                    # The batch as a whole was refused: mostly because it is too long for this endpoint.
                    if not _error(replies[0].get("error")).is_rate_limit and self._smaller(chunk):
                        return False
                    raise EndpointFailed("refused", perhaps_executed=False)
            for call, reply in zip(chunk, in_order(replies, expected=len(chunk)), strict=True):
                call.take(reply)
        except MalformedAnswerError:
            raise EndpointFailed("unexpected_answer", perhaps_executed=True) from None
        return True

    def _smaller(self, chunk: Sequence[object]) -> bool:
        self.batch_limit = max(1, len(chunk) // 2)
        return len(chunk) > 1


def _error(answer: object) -> RpcError:
    return RpcError(*error_of(answer))


def _never_sent(error: Exception) -> bool:
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.InvalidURL):
        return True
    inner = error.args[0] if error.args else None
    reason = inner.reason if isinstance(inner, MaxRetryError) else inner
    return isinstance(reason, NewConnectionError | ConnectTimeoutError)


def _cut_off(error: Exception) -> bool:
    return (
        isinstance(error, requests.ConnectionError)
        and bool(error.args)
        and isinstance(error.args[0], ProtocolError)
    )


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.headers["User-Agent"] = "purser"
    adapter = HTTPAdapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session
