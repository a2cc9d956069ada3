"""Calls of clients, with retries, and what became of them."""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from urllib.parse import urlsplit

from benchmarks.crash.upstream import MAX_TOKENS_OUT


class Outcome(StrEnum):
    """What a client learnt of one call."""

    ANSWERED = "answered"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass
class Client:
    """The clients of one key, which use the given base URLs in turn."""

    base_urls: Sequence[str]
    key: str
    model: str
    statuses: dict[str, int] = field(default_factory=dict)
    """How many responses of each status there were, with the beginning of the first body."""

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(self.base_urls)
        self._lock = threading.Lock()

    def send_all(
        self, ids: Iterable[str], *, concurrent: int, timeout: float = 60, attempts: int = 1, pause: float = 0
    ) -> list[Outcome]:
        """Make one call for each id; a call whose outcome is unknown is repeated under its id, `attempts` in all."""

        def call(name: str) -> Outcome:
            for attempt in range(attempts):
                if attempt:
                    time.sleep(pause)
                if (outcome := self._send(name, timeout)) is not Outcome.UNKNOWN:
                    break
            return outcome

        with ThreadPoolExecutor(concurrent) as threads:
            return list(threads.map(call, ids))

    def _send(self, name: str, timeout: float) -> Outcome:
        with self._lock:
            url = urlsplit(next(self._turns))
        body = {"model": self.model, "max_tokens": MAX_TOKENS_OUT, "messages": [{"role": "user", "content": name}]}
        headers = {
            "Authorization": f"Bearer {self.key}", "Content-Type": "application/json", "Idempotency-Key": name
        }  # fmt: skip
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.netloc, timeout=timeout)
        try:
            connection.request("POST", f"{url.path.rstrip('/')}/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._note(f"no response ({type(error).__name__})")
            return Outcome.UNKNOWN
        finally:
            connection.close()
        self._note(f"{response.status} {content[:160].decode(errors='replace') if response.status >= 400 else ''}")  # noqa: PLR2004
        if response.status == HTTPStatus.OK:
            return Outcome.ANSWERED
        is_refused = HTTPStatus.BAD_REQUEST <= response.status < HTTPStatus.INTERNAL_SERVER_ERROR
        return Outcome.REFUSED if is_refused else Outcome.UNKNOWN

    def _note(self, status: str) -> None:
        with self._lock:
            same = next((each for each in self.statuses if each.split()[0] == status.split(maxsplit=1)[0]), status)
            self.statuses[same] = self.statuses.get(same, 0) + 1
