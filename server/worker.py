"""gunicorn's threaded worker, hardened against slow, silent and malformed clients (decision 0100).

A request gets a thread once its head has arrived, and its body if that is small. The loop that accepts and dispatches
never blocks, and gunicorn's own errors have the API's error body. Named in gunicorn.conf.py.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import structlog
from gunicorn import util
from gunicorn.http import errors as http_errors
from gunicorn.http import wsgi
from gunicorn.workers.gthread import TConn, ThreadWorker

from server.client_socket import ClientSocket
from server.closing import LingeringCloser
from server.hooks import Hooks, ShedReason
from server.pool import ResourcePool
from server.request import MAX_BUFFERED_BYTES, BodyReader, expected_bytes
from server.response import Response
from server.staying import Staying

_log = structlog.get_logger(__name__)

HEAD_TIMEOUT_SECONDS = 10
_STOP_GRACE_SECONDS = 2
# For a whole process: these clients are still anonymous.
_MAX_TOTAL_BUFFERED_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 16_384
# How long to pause accepting when there is no free descriptor and no connection to evict.
_ACCEPT_PAUSE_SECONDS = 1
# What accept(2) reports when the process has no descriptors or memory; other errors concern one connection.
_EXHAUSTION_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

# Fixed messages: what was sent may hold a key, and goes neither into a response nor into a log.
_HEAD_TOO_LARGE_ERRORS = (http_errors.LimitRequestLine, http_errors.LimitRequestHeaders)
_RESPONSE_HEADER_ERRORS = (http_errors.InvalidResponseHeader, http_errors.InvalidResponseHeaderName)
_PARSE_ERROR_MESSAGES: Mapping[type[Exception], str] = {
    http_errors.ExpectationFailed: "The Expect header is not supported, except for 100-continue.",
    http_errors.UnsupportedTransferCoding: "The Transfer-Encoding is not supported, except for chunked.",
}


class ClientConnection(TConn):  # type: ignore[misc, unused-ignore]
    """A connection with the buffer of its next request; closing it does not block the worker."""

    def __init__(self, worker: Worker, *connection: Any) -> None:
        super().__init__(*connection)
        self.worker = worker
        self.buffer = bytearray()
        # How many bytes to buffer before a thread gets the request; 0 until the head is complete.
        self.expected_bytes = 0
        # Whether its requests follow each other closely.
        self.is_busy = False

    def close(self, graceful: bool = False) -> None:  # noqa: FBT001, FBT002 - gunicorn's own signature
        """Close it; if `graceful`, so that a client that is still sending can read the response."""
        if graceful:
            self.worker.lingering_closer.add(self.sock)
        else:
            self.sock.close()


class Worker(ThreadWorker):  # type: ignore[misc, unused-ignore]
    """Buffers heads in its loop, dispatches requests to threads, and evicts slow or idle connections."""

    stay_ms = 20
    """How long a thread waits for the next request of a busy connection; 0: not at all. `post_fork` may change it."""

    wsgi: Any
    lingering_closer: LingeringCloser
    hooks: Hooks

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Connections with an incomplete request: their deadlines, oldest first; and in order of their last byte.
        self._head_deadlines: dict[ClientConnection, int] = {}
        self._stalled: OrderedDict[ClientConnection, None] = OrderedDict()
        self._evictions: Counter[ShedReason] = Counter()
        self._evictions_logged_at = 0
        self._buffered_bytes = 0
        self._accept_resumes_at = 0
        self._has_drained_backlog = False
        self._stop_deadline: int | None = None

    def run(self) -> None:
        """Serve until stopped, and until the last responses have been read."""
        self._staying = Staying(threads=self.cfg.threads, wait_ms=self.stay_ms)
        # gunicorn looks settings up by its __getattr__, thirty times per request.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        self.lingering_closer = LingeringCloser()
        # An application shares its pools, from which it takes threads for its own waits.
        self.hooks = getattr(self.wsgi, "server_hooks", None) or Hooks(ResourcePool.for_threads(self.cfg.threads))
        self.poller.register(self.lingering_closer, selectors.EVENT_READ, lambda lingering: lingering.discard_input())
        super().run()
        self.lingering_closer.drain()

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001 - gunicorn's own signature
        """Accept connections or not; called by gunicorn's loop in each iteration."""
        is_alive = self.alive  # read once: a signal may change it in between
        super().set_accept_enabled(enabled and is_alive and time.monotonic_ns() >= self._accept_resumes_at)
        if not is_alive and not self._has_drained_backlog:
            # Once: accepting may fail and call this method again.
            self._has_drained_backlog = True
            for listener in self.sockets:
                self._drain_accept_backlog(listener)

    def accept(self, listener: socket.socket) -> None:
        """Accept a connection; at the limit of connections, evict another one."""
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTION_ERRNOS:
                self._free_descriptor()
            return
        self.nr_conns += 1
        connection = ClientSocket.wrap(accepted, self.hooks)
        client = ClientConnection(self, self.cfg, connection, address, listener.getsockname())
        self._read_available(client)
        if self.nr_conns >= self.worker_connections:
            self._evict_one(exclude=client)

    def on_client_socket_readable(self, conn: ClientConnection, client: socket.socket) -> None:
        """Read the next request of a kept-alive connection, unless it was just evicted."""
        try:
            self.keepalived_conns.remove(conn)
        except ValueError:
            return
        self.poller.unregister(client)
        idle_since = conn.timeout - self.cfg.keepalive
        conn.is_busy = self._staying.is_busy(idle_ms=int((time.monotonic() - idle_since) * 1000))
        self._read_available(conn)

    def enqueue_req(self, conn: ClientConnection) -> None:
        """Pass a connection to a thread."""
        self._staying.occupied += 1
        super().enqueue_req(conn)

    def handle(self, conn: ClientConnection) -> Any:
        """Serve a request, in a thread, and those that follow it immediately."""
        while True:
            structlog.contextvars.clear_contextvars()
            conn.sock.begin_request()
            try:
                is_kept_alive = super().handle(conn)
            finally:
                conn.sock.end_request()
            if not (is_kept_alive and self._staying.receive_next(conn)):
                return is_kept_alive

    def handle_request(self, req: Any, conn: ClientConnection) -> bool:
        """Call the application and write its response; return whether the connection is kept alive.

        As gunicorn's method, but `wsgi.input` raises `MalformedBody` instead of gunicorn's errors, head and body are
        written together, and there are no request hooks.
        """
        started_at = datetime.now(UTC)
        req.body.reader = BodyReader(req.body.reader)
        response, environ = wsgi.create(req, conn.sock, conn.client, conn.server, self.cfg, response_class=Response)
        environ["wsgi.multithread"] = True
        self.nr += 1
        if self.nr >= self.max_requests:
            self.alive = False
        if not self.alive or not self.cfg.keepalive or len(self.keepalived_conns) >= self.max_keepalived:
            response.force_close()
        try:
            pieces = self.wsgi(environ, response.start_response)
            try:
                for piece in pieces:
                    response.write(piece)
                response.close()
            finally:
                self.log.access(response, req, environ, datetime.now(UTC) - started_at)
                if hasattr(pieces, "close"):
                    pieces.close()
        except OSError:
            raise
        except Exception:
            if not response.headers_sent:
                raise
            # An error response in the middle of this one would be taken for its body.
            self.log.exception("Error handling request")
            return False
        return not response.should_close()

    def finish_request(self, conn: ClientConnection, fs: Any) -> None:
        """Keep or close a connection; at the limit of connections, evict one."""
        self._staying.occupied -= 1
        is_kept_alive = not fs.cancelled() and fs.exception() is None and fs.result()
        if is_kept_alive and (pipelined := conn.parser.unreader.take_buffered()):
            # The start of the next request, which no thread waits for either.
            conn.sock.settimeout(0)
            self._buffer_chunk(conn, pipelined)
        else:
            super().finish_request(conn, fs)
        if self.nr_conns >= self.worker_connections:
            self._evict_one()

    def murder_pending(self) -> None:
        """Close connections with a head that has not arrived in time; called by the loop each second."""
        now = time.monotonic_ns()
        if not self.alive and self._stop_deadline is None:
            self._stop_deadline = now + _STOP_GRACE_SECONDS * 10**9
        for client, deadline in list(self._head_deadlines.items()):
            if min(deadline, self._stop_deadline or deadline) > now:
                break
            if self._stop_buffering(client):
                self._reject(client, HTTPStatus.REQUEST_TIMEOUT)
            else:
                self._close_client(client)
        self.lingering_closer.close_expired()
        self._log_evictions(now)

    def handle_error(self, req: Any, client: socket.socket, addr: object, exc: BaseException) -> None:
        """Respond to a request that did not reach the application, with an error of the application's."""
        del req, addr
        reason = type(exc).__name__
        if isinstance(exc, _HEAD_TOO_LARGE_ERRORS):
            self._send_error(client, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
        elif isinstance(exc, http_errors.ParseException) and not isinstance(exc, _RESPONSE_HEADER_ERRORS):
            message = _PARSE_ERROR_MESSAGES.get(type(exc), "The request is not valid HTTP/1.1.")
            self._send_error(client, HTTPStatus.BAD_REQUEST, reason, message)
        else:
            request_id = self._send_error(client, HTTPStatus.INTERNAL_SERVER_ERROR, reason)
            _log.error("request_failed", exc_info=exc, request_id=request_id)

    def _read_available(self, client: ClientConnection) -> None:
        try:
            client.sock.settimeout(0)
            chunk = client.sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            self._wait_for_more(client)
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._stop_buffering(client)
            self._close_client(client)
        else:
            self._buffer_chunk(client, chunk)

    def _buffer_chunk(self, client: ClientConnection, chunk: bytes) -> None:
        """Add to a request; dispatch it to a thread once enough has arrived."""
        client.buffer += chunk
        self._buffered_bytes += len(chunk)
        if not client.expected_bytes:
            client.expected_bytes = expected_bytes(client.buffer, searched_bytes=len(client.buffer) - len(chunk))
        if 0 < client.expected_bytes <= len(client.buffer):
            self._dispatch(client)
        elif len(client.buffer) > MAX_BUFFERED_BYTES:
            self._stop_buffering(client)
            self._reject(client, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self._wait_for_more(client)
            while self._buffered_bytes > _MAX_TOTAL_BUFFERED_BYTES:
                largest = max(self._head_deadlines, key=lambda client: len(client.buffer))
                self._stop_buffering(largest)
                self._reject(largest, HTTPStatus.REQUEST_TIMEOUT)

    def _wait_for_more(self, client: ClientConnection) -> None:
        self._stalled[client] = None
        self._stalled.move_to_end(client)
        if client in self._head_deadlines:
            return
        self._head_deadlines[client] = time.monotonic_ns() + HEAD_TIMEOUT_SECONDS * 10**9
        self.poller.register(client.sock, selectors.EVENT_READ, lambda _socket: self._on_readable(client))

    def _on_readable(self, client: ClientConnection) -> None:
        # An earlier event of the same iteration may have evicted it.
        if client in self._head_deadlines:
            self._read_available(client)

    def _dispatch(self, client: ClientConnection) -> None:
        buffered = self._stop_buffering(client)
        client.init()
        client.sock.settimeout(None)
        client.parser.unreader.unread(buffered)
        client.data_ready = True
        self.enqueue_req(client)

    def _stop_buffering(self, client: ClientConnection) -> bytes:
        """Stop buffering a request; return what has arrived."""
        if self._head_deadlines.pop(client, None) is not None:
            del self._stalled[client]
            self.poller.unregister(client.sock)
        buffered = bytes(client.buffer)
        self._buffered_bytes -= len(buffered)
        client.buffer.clear()
        client.expected_bytes = 0
        return buffered

    def _close_client(self, client: ClientConnection) -> None:
        self.nr_conns -= 1
        client.close()

    def _reject(self, client: ClientConnection, status: HTTPStatus) -> None:
        self._send_error(client.sock, status, status.phrase)
        self.nr_conns -= 1
        client.close(graceful=True)

    def _evict_one(self, *, exclude: ClientConnection | None = None) -> bool:
        """Close an idle connection, or else the one stalled longest in the middle of a request."""
        return self._evict_idle() or self._evict_stalled(exclude=exclude)

    def _evict_idle(self) -> bool:
        idle_connections: deque[ClientConnection] = self.keepalived_conns
        if not idle_connections:
            return False
        client = idle_connections.popleft()
        self.poller.unregister(client.sock)
        self._close_client(client)
        self._count_eviction(ShedReason.IDLE)
        return True

    def _evict_stalled(self, *, exclude: ClientConnection | None = None) -> bool:
        stalled = next((client for client in self._stalled if client is not exclude), None)
        if stalled is None:
            return False
        if self._stop_buffering(stalled):
            self._reject(stalled, HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._close_client(stalled)
        self._count_eviction(ShedReason.INCOMPLETE_REQUEST)
        return True

    def _count_eviction(self, reason: ShedReason) -> None:
        self.hooks.count_shed(reason)
        self._evictions[reason] += 1

    def _log_evictions(self, now: int) -> None:
        """Log evictions, at most one line per second: at the limit, each new connection evicts another."""
        if self._evictions and now >= self._evictions_logged_at + 10**9:
            _log.warning("connections_evicted", **{reason.value: count for reason, count in self._evictions.items()})
            self._evictions.clear()
            self._evictions_logged_at = now

    def _drain_accept_backlog(self, listener: Any) -> None:
        """Accept what is in the backlog, which the kernel would reset, then stop listening."""
        for _ in range(self.cfg.backlog):
            self.accept(listener)
        listener.close()

    def _free_descriptor(self) -> None:
        # A lingering connection has its response; a stalled one gets an error and lingers, so it comes last.
        if self._evict_idle() or self.lingering_closer.close_oldest() or self._evict_stalled():
            return
        # The listener stays readable, so that the loop would spin.
        self._accept_resumes_at = time.monotonic_ns() + _ACCEPT_PAUSE_SECONDS * 10**9
        self.set_accept_enabled(enabled=False)

    def _send_error(self, client: socket.socket, status: HTTPStatus, reason: str, message: str | None = None) -> str:
        """Write an error without blocking; return its request id."""
        request_id = str(uuid.uuid4())
        _log.warning("request_rejected", reason=reason, status=status.value, request_id=request_id)
        body = self.hooks.error_body(status, message, request_id)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nDate: {util.http_date()}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-Request-Id: {request_id}\r\n"
            "X-Content-Type-Options: nosniff\r\n\r\n"
        )
        with suppress(OSError):
            util.write_nonblock(client, head.encode() + body)
        return request_id
