"""An upstream that costs next to nothing: `python -m benchmarks.upstream PORT`. Answers chats at once, or streams them.

`stream` in the body asks for an event a second, `STREAM_SECONDS` of them; the first comes at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

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
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_SECONDS = int(os.environ.get("STREAM_SECONDS", "30"))


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop streaming."""
        del exc
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
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
            if b'"stream": true' in body or b'"stream":true' in body:
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
        for _ in range(_SECONDS):
            send({**shape, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]})
            await asyncio.sleep(1)
        send({**shape, "choices": [], "usage": _USAGE})
        send("[DONE]")
        transport.write(b"0\r\n\r\n")


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
