"""Receivers of webhooks on loopback, and the worker that delivers to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.events.feed import number_all
from tests.support.agents import Agent
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve
from workers import events

OK = Reply(b"", 204)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver; `server.answer` decides what it answers."""

    server: RecordingServer

    @property
    def url(self) -> str:
        return f"{self.server.url}/hooks"

    @property
    def requests(self) -> list[Asked]:
        return self.server.asked

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that were sent, in the order of arrival."""
        return [json.loads(asked.body) for asked in self.requests]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]


@contextmanager
def receiver(answer: Callable[[Asked], Reply] = lambda _asked: OK) -> Iterator[Receiver]:
    """Run a receiver until the block ends."""
    with serve(answer) as server:
        yield Receiver(server)


def deliver() -> None:
    """Do what the worker does, and wait for it."""
    number_all()
    for thread in events.start_threads():
        thread.join(60)
        assert not thread.is_alive()


def add_webhook(agent: Agent, url: str, *types: str) -> dict[str, Any]:
    """Add a webhook of an agent; return it with its secret."""
    answer = agent.post("/v1/webhooks", {"url": url, "types": types or ["*"]})
    assert answer.status_code == 201, answer.get_data(as_text=True)
    made: dict[str, Any] = answer.get_json()
    return made


def deliveries_of(agent: Agent, webhook: dict[str, Any], **query: Any) -> list[dict[str, Any]]:
    """Return the deliveries to a webhook, newest first."""
    answer = agent.get(f"/v1/webhooks/{webhook['id']}/deliveries", **query)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    rows: list[dict[str, Any]] = answer.get_json()["deliveries"]
    return rows


def feed(agent: Agent, **query: Any) -> list[dict[str, Any]]:
    """Return the events that an agent reads."""
    answer = agent.get("/v1/events", **query)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    rows: list[dict[str, Any]] = answer.get_json()["events"]
    return rows
