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
from pathlib import Path
from typing import Any

from app.core import clock
from app.core.strict_json import parse_response
from app.ports.probes import RECORD

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
        token = RECORD.set(lambda *exchange: exchanges.append(self._exchange(*exchange)))
        try:
            yield
        finally:
            RECORD.reset(token)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._run, indent=1) + "\n", "utf-8")

    def _exchange(self, request: str, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        return {
            "request": self._redact(request),
            "status": status,
            "headers": {name.lower(): value for name, value in headers.items() if name.lower() in _HEADERS},
            "body": self._body(body),
        }

    def _body(self, body: bytes) -> Any:
        """Return the redacted document; None for anything but JSON."""
        try:
            document = parse_response(body, parse_float=float)
        except ValueError:
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
