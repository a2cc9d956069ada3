"""gunicorn's threaded worker, hardened against callers that are slow, silent or malformed (decision 0100).

A thread is given to a request whose head has arrived, and its body if it is small. Nothing waits in the loop that
accepts and dispatches, and what gunicorn itself refuses is refused in our words. Loaded by gunicorn's settings.
"""

from __future__ import annotations

import errno
import json
import re
import select
import selectors
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import structlog
from gunicorn import util
from gunicorn.http import errors as http_errors
from gunicorn.workers.gthread import TConn, ThreadWorker

from app.core import tallies
from app.core.identifiers import new_id
from app.errors import InternalError, InvalidInput, ServiceError
from app.web import budgets
from app.web.budgets import Budget
from app.web.callers import CallerSocket, HeadTooLarge, RequestTimeout, Why, count_let_go
from app.web.lingering import Lingering

_log = structlog.get_logger(__name__)

HEAD_SECONDS = 10
_STOP_SECONDS = 2
_MAX_GATHERED_BYTES = 64 * 1024
# Of a whole process: nobody has shown a key yet.
_MOST_GATHERED_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 16_384
_END = b"\r\n\r\n"
# Only how much is worth waiting for: what frames a body is for the parser to say.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,5})[ \t]*\r\n", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:", re.IGNORECASE)
# How long nobody is accepted where there is no descriptor for one, nor anybody to take it from.
_FULL_SECONDS = 1
# What accept(2) may fail with: for want of descriptors or memory, and for what became of that one connection.
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NOT_ACCEPTED = frozenset(
    {
        errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ETIMEDOUT,
        errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOPROTOOPT,
        errno.EOPNOTSUPP, getattr(errno, "ENONET", errno.ENETDOWN),
    }
)  # fmt: skip

# Fixed words: what was sent may hold a key, and goes neither into an answer nor into a log.
_TOO_LARGE = (http_errors.LimitRequestLine, http_errors.LimitRequestHeaders)
_OUR_HEADERS = (http_errors.InvalidResponseHeader, http_errors.InvalidResponseHeaderName)
_SENTENCES: Mapping[type[Exception], str] = {
    http_errors.ExpectationFailed: "Nothing but 100-continue can be expected.",
    http_errors.UnsupportedTransferCoding: "The body's transfer coding is not known; only chunked is.",
}


class Caller(TConn):  # type: ignore[misc, unused-ignore]
    """A connection whose end does not hold the worker up."""

    def __init__(self, worker: Worker, *connection: Any) -> None:
        """Take a connection that was accepted."""
        super().__init__(*connection)
        self.worker = worker
        self.gathered = bytearray()
        # How much there has to be of it before a thread is worth its while; nothing until the head is whole.
        self.awaited = 0

    def close(self, graceful: bool = False) -> None:  # noqa: FBT001, FBT002 - gunicorn's own signature
        """Close it; gracefully, so that a caller who is still sending gets to read its answer."""
        if graceful:
            self.worker.lingering.add(self.sock)
        else:
            self.sock.close()


class Worker(ThreadWorker):  # type: ignore[misc, unused-ignore]
    """Gathers heads in its loop, gives them to threads, and lets go of who takes too long."""

    lingering: Lingering
    threads: Budget

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make the worker."""
        super().__init__(*arguments, **options)
        self._bodies = Budget.of_bodies()
        # Those whose request is not whole: with the end of their time, by when it began, and by their last byte.
        self._gathering: dict[Caller, int] = {}
        self._silent: OrderedDict[Caller, None] = OrderedDict()
        self._given_way: Counter[Why] = Counter()
        self._told_at = 0
        self._gathered_bytes = 0
        self._accept_at = 0
        self._has_closed = False
        self._stop_at: int | None = None

    def run(self) -> None:
        """Serve until told to stop, and until the last answers have been read."""
        self.lingering = Lingering()
        # The application's own, from which its forwarded calls and its waits draw, too.
        self.threads = budgets.threads_of(self.wsgi, otherwise=self.cfg.threads)
        self.poller.register(self.lingering, selectors.EVENT_READ, lambda lingering: lingering.discard())
        super().run()
        self.lingering.see_off()

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001 - gunicorn's own signature
        """Listen or not; gunicorn's loop asks for it at each turn."""
        alive = self.alive  # read once: a signal may end it in between
        super().set_accept_enabled(enabled and alive and time.monotonic_ns() >= self._accept_at)
        if not alive and not self._has_closed:
            # Once, also where who knocks cannot be let in and this is asked for again meanwhile.
            self._has_closed = True
            for listener in self.sockets:
                self._close_door(listener)

    def accept(self, listener: socket.socket) -> None:
        """Accept a connection; where there are too many, another one gives way."""
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno in _FULL:
                self._find_a_descriptor()
            elif error.errno not in _NOT_ACCEPTED:
                raise
            return
        self.nr_conns += 1
        connection = CallerSocket.of(accepted, self.threads, self._bodies)
        caller = Caller(self, self.cfg, connection, address, listener.getsockname())
        self._hear(caller)
        if self.nr_conns >= self.worker_connections:
            self._let_one_go(but=caller)

    def on_client_socket_readable(self, conn: Caller, client: socket.socket) -> None:
        """Hear the next request of a connection that was kept, if it has not just given way to another."""
        try:
            self.keepalived_conns.remove(conn)
        except ValueError:
            return
        self.poller.unregister(client)
        self._hear(conn)

    def handle(self, conn: Caller) -> Any:
        """Serve a request, in a thread."""
        structlog.contextvars.clear_contextvars()
        conn.sock.begin()
        try:
            return super().handle(conn)
        finally:
            conn.sock.end()

    def finish_request(self, conn: Caller, fs: Any) -> None:
        """Keep or end a connection; where there are too many, one that only rests gives way, so that others come in."""
        kept = not fs.cancelled() and fs.exception() is None and fs.result()
        if kept and (ahead := conn.parser.unreader.take_buffered()):
            # Of the next request, for which no thread waits either.
            conn.sock.settimeout(0)
            self._take(conn, ahead)
        else:
            super().finish_request(conn, fs)
        if self.nr_conns >= self.worker_connections:
            self._let_one_go()

    def murder_pending(self) -> None:
        """Let go of whose time to send a head is over; called by the loop each second."""
        now = time.monotonic_ns()
        if not self.alive and self._stop_at is None:
            self._stop_at = now + _STOP_SECONDS * 10**9
        for caller, deadline in list(self._gathering.items()):
            if min(deadline, self._stop_at or deadline) > now:
                break
            if self._forget(caller):
                self._refuse(caller, RequestTimeout())
            else:
                self._drop(caller)
        self.lingering.end_overdue()
        self._tell_who_gave_way(now)

    def handle_error(self, req: Any, client: socket.socket, addr: object, exc: BaseException) -> None:
        """Answer what never reached the application, in the one shape that failures have."""
        del req, addr
        reason = type(exc).__name__
        if isinstance(exc, _TOO_LARGE):
            _answer(client, HeadTooLarge(), reason)
        elif isinstance(exc, http_errors.ParseException) and not isinstance(exc, _OUR_HEADERS):
            _answer(
                client, InvalidInput(_SENTENCES.get(type(exc), "The request is not valid HTTP/1.1.")), reason
            )
        else:
            request_id = _answer(client, InternalError(), reason)
            _log.error("request_failed", exc_info=exc, request_id=request_id)

    def _keepalive_after(self, conn: Caller, keepalive: bool) -> bool:  # noqa: FBT001 - gunicorn's own signature
        """Read what is left of a body. One that cannot be read has had its answer, and ends without another."""
        try:
            return bool(super()._keepalive_after(conn, keepalive))
        except http_errors.ParseException:
            return False

    def _hear(self, caller: Caller) -> None:
        try:
            caller.sock.settimeout(0)
            piece = caller.sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            self._await(caller)
            return
        except OSError:
            piece = b""
        if not piece:
            self._forget(caller)
            self._drop(caller)
        else:
            self._take(caller, piece)

    def _take(self, caller: Caller, piece: bytes) -> None:
        """Add to a request; hand it to a thread once there is enough."""
        caller.gathered += piece
        self._gathered_bytes += len(piece)
        if not caller.awaited:
            caller.awaited = _worth_awaiting(caller.gathered, since=len(caller.gathered) - len(piece))
        if 0 < caller.awaited <= len(caller.gathered):
            self._hand_over(caller)
        elif len(caller.gathered) > _MAX_GATHERED_BYTES:
            self._forget(caller)
            self._refuse(caller, HeadTooLarge())
        else:
            self._await(caller)
            while self._gathered_bytes > _MOST_GATHERED_BYTES:
                largest = max(self._gathering, key=lambda one: len(one.gathered))
                self._forget(largest)
                self._refuse(largest, RequestTimeout())

    def _await(self, caller: Caller) -> None:
        self._silent[caller] = None
        self._silent.move_to_end(caller)
        if caller in self._gathering:
            return
        self._gathering[caller] = time.monotonic_ns() + HEAD_SECONDS * 10**9
        self.poller.register(caller.sock, selectors.EVENT_READ, lambda _socket: self._hear_more(caller))

    def _hear_more(self, caller: Caller) -> None:
        # Of those that became readable at once, an earlier one may have made this one give way.
        if caller in self._gathering:
            self._hear(caller)

    def _hand_over(self, caller: Caller) -> None:
        gathered = self._forget(caller)
        caller.init()
        caller.sock.settimeout(None)
        caller.parser.unreader.unread(gathered)
        caller.data_ready = True
        self.enqueue_req(caller)

    def _forget(self, caller: Caller) -> bytes:
        """Gather no more of a request; return what there is of it."""
        if self._gathering.pop(caller, None) is not None:
            del self._silent[caller]
            self.poller.unregister(caller.sock)
        gathered = bytes(caller.gathered)
        self._gathered_bytes -= len(gathered)
        caller.gathered.clear()
        caller.awaited = 0
        return gathered

    def _drop(self, caller: Caller) -> None:
        self.nr_conns -= 1
        caller.close()

    def _refuse(self, caller: Caller, failure: ServiceError) -> None:
        _answer(caller.sock, failure, type(failure).__name__)
        self.nr_conns -= 1
        caller.close(graceful=True)

    def _let_one_go(self, *, but: Caller | None = None) -> bool:
        """End a connection that only rests; where none does, the one in the middle of a request silent for longest."""
        return self._let_resting_go() or self._let_silent_go(but=but)

    def _let_resting_go(self) -> bool:
        kept: deque[Caller] = self.keepalived_conns
        if not kept:
            return False
        caller = kept.popleft()
        self.poller.unregister(caller.sock)
        self._drop(caller)
        self._note(Why.RESTED)
        return True

    def _let_silent_go(self, *, but: Caller | None = None) -> bool:
        silent = next((caller for caller in self._silent if caller is not but), None)
        if silent is None:
            return False
        if self._forget(silent):
            self._refuse(silent, RequestTimeout())
        else:
            self._drop(silent)
        self._note(Why.HALF_SENT)
        return True

    def _note(self, why: Why) -> None:
        count_let_go(why)
        self._given_way[why] += 1

    def _tell_who_gave_way(self, now: int) -> None:
        """Log it, in one line for a second: where there are too many, each newcomer makes another one go."""
        if self._given_way and now >= self._told_at + 10**9:
            _log.warning("callers_gave_way", **{why.value: count for why, count in self._given_way.items()})
            self._given_way.clear()
            self._told_at = now

    def _close_door(self, listener: Any) -> None:
        """Let in who knocked before we were told to end, whom the kernel would reset; refuse who comes after."""
        knocks = select.poll()
        knocks.register(listener, select.POLLIN)
        for _ in range(self.cfg.backlog):
            if not knocks.poll(0):
                break
            self.accept(listener)
        listener.close()

    def _find_a_descriptor(self) -> None:
        # Who lingers has its answer; who is told of its end while it sends lingers.
        if self._let_resting_go() or self.lingering.end_oldest() or self._let_silent_go():
            return
        # Who cannot be accepted is announced again and again.
        self._accept_at = time.monotonic_ns() + _FULL_SECONDS * 10**9
        self.set_accept_enabled(enabled=False)


def _worth_awaiting(gathered: bytearray, *, since: int) -> int:
    """Return how many bytes there are to be before anybody looks at them: a head and a small body, else 0 as yet.

    A head that can only be refused is not waited for, nor a body that its sender keeps back or does not measure.
    """
    looked_at = max(0, since - len(_END))
    end = gathered.find(_END, looked_at)
    if end < 0:
        return len(gathered) if gathered.find(b"\n\n", looked_at) >= 0 else 0
    head = bytes(gathered[: end + len(_END)])
    stated = _LENGTH.search(head)
    if stated is None or _EXPECTS.search(head):
        return len(head)
    whole = len(head) + int(stated[1])
    return whole if whole <= _MAX_GATHERED_BYTES else len(head)


def _answer(client: socket.socket, failure: ServiceError, reason: str) -> str:
    """Write a failure if the caller reads it at once; return its id."""
    request_id = new_id()
    status = HTTPStatus(failure.status)
    _log.warning("request_refused", reason=reason, status=failure.status, request_id=request_id)
    tallies.count("requests", method="", route="", status=str(failure.status))
    members = {"error": failure.message, "code": failure.code.value, "request_id": request_id}
    body = json.dumps(members).encode()
    head = (
        f"HTTP/1.1 {failure.status} {status.phrase}\r\nDate: {util.http_date()}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-Request-Id: {request_id}\r\n"
        "X-Content-Type-Options: nosniff\r\n\r\n"
    )
    with suppress(OSError):
        util.write_nonblock(client, head.encode() + body)
    return request_id
