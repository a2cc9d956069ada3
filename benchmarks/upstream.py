"""A minimal upstream: `python -m benchmarks.upstream PORT`. Answers chats immediately, or streams them.

`stream` in the body yields an event a second for `STREAM_SECONDS`; the first is immediate. A `user` named `cut` gets
half of a response, and then a reset.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import stack
from tests.support.servers import free_port

CHAT = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 100}

_USAGE = {"prompt_tokens": 12, "completion_tokens": 30, "total_tokens": 42}
_TEXT = "word " * 150
_BODY = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5-mini", "usage": _USAGE,
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": _TEXT}}
        ],
    }
).encode()  # fmt: skip
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_STREAM_SECONDS = int(os.environ.get("STREAM_SECONDS", "30"))


@dataclass(frozen=True, slots=True)
class Upstream:
    """A running upstream."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Its base URL, without a path."""
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def running_upstream(*, stream_seconds: int = 480) -> Iterator[Upstream]:
    """Run an upstream until the context ends. Its streams last until the client closes them, or this long."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.upstream", str(port)]
    settings = {"PYTHONPATH": str(stack.ROOT), "STREAM_SECONDS": str(stream_seconds)}
    with stack.running_program(command, port, settings=settings) as pid:
        yield Upstream(port, pid)


class UpstreamProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop streaming."""
        del exc
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            self._received = self._received[end + 4 + length :]
            assert self._transport is not None
            streams = b'"stream": true' in body or b'"stream":true' in body
            if re.search(rb'"user": ?"cut"', body):
                half = _STREAM + b"7\r\ndata: {\r\n" if streams else _ANSWER[: len(_ANSWER) // 2]
                self._transport.write(half)
                asyncio.get_running_loop().call_later(0.05, self._transport.abort)
            elif streams:
                self._task = asyncio.get_running_loop().create_task(self._stream(self._transport))
            else:
                self._transport.write(_ANSWER)

    @staticmethod
    async def _stream(transport: asyncio.Transport) -> None:
        def send(event: object) -> None:
            text = event if isinstance(event, str) else json.dumps(event)
            frame = f"data: {text}\n\n".encode()
            transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))

        shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
        transport.write(_STREAM)
        for _ in range(_STREAM_SECONDS):
            send({**shape, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]})
            await asyncio.sleep(1)
        send({**shape, "choices": [], "usage": _USAGE})
        send("[DONE]")
        transport.write(b"0\r\n\r\n")


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(UpstreamProtocol, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
