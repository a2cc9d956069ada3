"""Recording of upstreams' answers for the contract tests, which replay them; only `flask doctor --live` records.

The requests are the service's own, so that no client's data can be in an answer. Of each answer the shape is stored,
and the values of members that an adapter reads; all others, such as ids of requests and names of accounts, are
replaced. Keys of the operator are replaced everywhere.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.adapters.upstream_http.exchange import RESPONSE_WRAPPER, HttpUpstreamResponse
from app.core import clock
from app.core.content_decoding import UndecodableResponse, decoder_for
from app.core.strict_json import parse_response
from app.ports.upstream import UpstreamRequest

_HEADERS = frozenset({"content-type", "retry-after", "ratelimit-reset", "x-ratelimit-reset"})
_READ_MEMBERS: Mapping[str, frozenset[str]] = {
    form: frozenset(name for names in groups.values() for name in names.split())
    for form, groups in tomllib.loads(Path(__file__).with_name("recorded_members.toml").read_text("utf-8")).items()
}


class Recorder:
    """Stores the answers of one run in a file, by probe, in the order in which they were run."""

    def __init__(self, folder: Path, network: str, redact: Callable[[str], str]) -> None:
        """Store the folder, the network of the settings, and what replaces the operator's keys in a text."""
        self._path = folder / f"{network}-{clock.now():%Y%m%dT%H%M%SZ}.json"
        self._redact = redact
        self._probes: list[dict[str, Any]] = []
        self._run = {"network": network, "probes": self._probes}

    @contextmanager
    def recording(self, system: str, capability: str) -> Iterator[None]:
        """Record what upstreams answer in this context until the block ends."""
        exchanges: list[dict[str, Any]] = []
        probe = {"system": system, "capability": capability, "run_at": int(clock.now().timestamp())}
        self._probes.append({**probe, "exchanges": exchanges})
        token = RESPONSE_WRAPPER.set(
            lambda request, response: _RecordedResponse(
                response, lambda body: exchanges.append(self._exchange(request, response, body))
            )
        )
        try:
            yield
        finally:
            RESPONSE_WRAPPER.reset(token)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._run, indent=1) + "\n", "utf-8")

    def _exchange(self, request: UpstreamRequest, response: HttpUpstreamResponse, body: bytes) -> dict[str, Any]:
        fields = {name.lower(): value for name, value in response.headers}
        return {
            "request": self._redact(f"{request.method} {urlsplit(request.target).path}"),
            "status": response.status,
            "headers": {name: fields[name] for name in sorted(_HEADERS & fields.keys())},
            "body": self._body(body, fields.get("content-encoding")),
        }

    def _body(self, body: bytes, content_encoding: str | None) -> Any:
        """Return the redacted document; None for anything but JSON."""
        decoder = decoder_for(content_encoding)
        try:
            decoded = b"".join(decoder.feed(body)) if decoder is not None else b""
            document = parse_response(decoded, parse_float=float)
        except (UndecodableResponse, ValueError):
            return None
        first = document[0] if isinstance(document, list) and document else document
        is_rpc = isinstance(first, dict) and "jsonrpc" in first
        return self._redacted(document, _READ_MEMBERS["json_rpc" if is_rpc else "http"], is_read=False)

    def _redacted(self, value: Any, read_members: frozenset[str], *, is_read: bool) -> Any:
        if isinstance(value, dict):
            return {
                name: self._redacted(each, read_members, is_read=name in read_members) for name, each in value.items()
            }
        if isinstance(value, list):
            return [self._redacted(each, read_members, is_read=is_read) for each in value]
        if value is None or isinstance(value, bool):
            return value
        if not is_read:
            return "redacted" if isinstance(value, str) else 0
        return self._redact(value) if isinstance(value, str) else value


class _RecordedResponse(HttpUpstreamResponse):
    """A response that is recorded when it was read to its end."""

    def __init__(self, response: HttpUpstreamResponse, store: Callable[[bytes], None]) -> None:
        self._response = response
        self._store: Callable[[bytes], None] | None = store
        self._received = bytearray()
        self.headers = response.headers

    @property
    def status(self) -> int:
        return self._response.status

    def read_within(self, seconds: Decimal) -> bytes | None:
        del seconds
        return self.read()

    def read(self, *, extends_deadline: bool = True) -> bytes:
        piece = self._response.read(extends_deadline=extends_deadline)
        self._received += piece
        if not piece and self._store is not None:
            self._store(bytes(self._received))
            self._store = None
        return piece

    def abort(self) -> None:
        self._response.abort()

    def close(self) -> None:
        self._response.close()
