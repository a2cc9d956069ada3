"""The browser's only network access: a forward proxy on loopback that resolves once, checks, and connects to that.

Redirects, sockets, workers and prefetches all pass through it, which no rule inside the browser can guarantee.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit

from app.core.ip_ranges import is_public

_HTTPS = 443
_CONNECT_SECONDS = 10
_HEADERS_SECONDS = 15
_CHUNK = 65_536
_MAX_HEADERS = 65_536


class EgressProxy:
    """The egress rules: `private` allows every address, `reachable` these `host:port` in addition to public ones."""

    def __init__(self, *, private: bool, reachable: Collection[str] = ()) -> None:
        self._private = private
        self._reachable = frozenset(reachable)
        self.refused = 0

    async def dial(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a checked address. Raises: PermissionError, OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not all(self.allows(address, port) for address in addresses):
            raise PermissionError(host)
        error: OSError = OSError("no address")
        for address in addresses:
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, port), _CONNECT_SECONDS)
            except OSError as failure:
                error = failure
        raise error

    def allows(self, address: str, port: int) -> bool:
        """Return whether an address may be connected to."""
        plain = address
        with contextlib.suppress(ValueError):
            parsed = ipaddress.ip_address(address)
            plain = str(getattr(parsed, "ipv4_mapped", None) or parsed)
        if self._private or f"{plain}:{port}" in self._reachable:
            return True
        return port == _HTTPS and is_public(address)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from the browser."""
        upstream_writer: asyncio.StreamWriter | None = None
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEADERS_SECONDS)
            method, target, version = head.split(b"\r\n", 1)[0].split(b" ")
            if method == b"CONNECT":
                host, _, port = target.decode("ascii").rpartition(":")
                upstream_reader, upstream_writer = await self.dial(host.strip("[]"), int(port))
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                parts = _http_target(target)
                upstream_reader, upstream_writer = await self.dial(parts.hostname or "", parts.port or 80)
                upstream_writer.write(_request(method, parts.path, parts.query, version, head))
            await asyncio.gather(_pipe(reader, upstream_writer), _pipe(upstream_reader, writer), return_exceptions=True)
        except PermissionError:
            self.refused += 1
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        finally:
            for end in (writer, upstream_writer):
                if end is not None:
                    end.close()


def _http_target(target: bytes) -> SplitResult:
    """Return the target of a request without a tunnel. Raises: PermissionError for other schemes than http."""
    parts = urlsplit(target.decode("ascii"))
    if parts.scheme != "http":
        raise PermissionError(parts.scheme)
    return parts


def _request(method: bytes, path: str, query: str, version: bytes, head: bytes) -> bytes:
    lines = [
        line for line in head.split(b"\r\n")[1:] if line and not line.lower().startswith((b"proxy-", b"connection:"))
    ]
    target = (path or "/") + (f"?{query}" if query else "")
    # One request per connection: the next one may name another host, which would not be checked.
    return b"\r\n".join([b" ".join([method, target.encode(), version]), b"Connection: close", *lines, b"", b""])


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


@contextmanager
def serve(egress: EgressProxy) -> Iterator[str]:
    """Serve the proxy on a loopback port in a thread of its own; yield its URL."""
    loop = asyncio.new_event_loop()
    started: list[asyncio.Server] = []
    ready = threading.Event()

    async def start() -> None:
        started.append(await asyncio.start_server(egress.handle, "127.0.0.1", 0, limit=_MAX_HEADERS))
        ready.set()

    async def end() -> None:
        started[0].close()
        open_ways = asyncio.all_tasks() - {asyncio.current_task()}
        for way in open_ways:
            way.cancel()
        await asyncio.gather(*open_ways, return_exceptions=True)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(end())
        # Includes the thread that resolves names.
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run, daemon=True, name="egress")
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{started[0].sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
