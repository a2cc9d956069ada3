"""Events delivered to many webhooks: recorded at a rate by one process, sent by a worker's threads in another."""

import json
import multiprocessing
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from flask import Flask

from app.config import Settings
from app.core import clock, identifiers
from app.db.unit_of_work import unit_of_work
from app.events import feed, outbox, targets
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber, TargetKind
from app.extensions import db
from app.factory import create_app
from app.idempotency.service import Claim
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.notices import Mailbox, running_mailbox
from tests.support.waiting import beside
from workers import events

_TARGETS = 100
# Agents are divided among them.
_RECORDERS = 4
_EVENTS_PER_SECOND = 10_000 / 60
_OBJECTS_PER_AGENT = 20
_MAX_DELAY_SECONDS = 10.0
_SLOW_TARGETS = 5
_SLOW_SECONDS = 12.0
_TICK_SECONDS = 2.0
_HOSTILE_AGENTS, _HOSTILE_WEBHOOKS, _HOSTILE_EVENTS = 8, 10, 250
_HOSTILE_SECONDS = 14.0
_QUIET_AGENTS = 20
_MAX_NOTICE_SECONDS, _MAX_VICTIM_SECONDS = 10.0, 30.0


class _Receivers:
    """Counts what arrives, with its delay and whether an object's events are in order."""

    def __init__(self) -> None:
        self.delays: dict[str, float] = {}
        self.repeated = self.disordered = 0
        self._last: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self._lock = threading.Lock()

    def answer(self, asked: Asked) -> Reply:
        event = json.loads(asked.body)
        number, sent_at = event["data"]["number"], event["data"]["sent_at"]
        place = asked.target, event["object_id"]
        with self._lock:
            self.repeated += event["id"] in self.delays
            self.delays.setdefault(event["id"], time.time() - sent_at)
            self.disordered += number < self._last[place]
            self._last[place] = number
        return Reply(b"", 204)


def measure(infrastructure: Infrastructure, *, seconds: float) -> list[Threshold]:
    """Record events of 100 agents, each with a webhook, for a while, and wait until all have arrived."""
    rate = round(_EVENTS_PER_SECOND * 60)
    thresholds.print_heading(f"{rate:,} events a minute to {_TARGETS} webhooks, {_SLOW_TARGETS} more do not answer")
    environment = infrastructure.migrated("events", LOG_LEVEL="ERROR")
    app = create_app(Settings(**stack.settings_of(environment)))
    receivers = _Receivers()
    with ExitStack() as made, app.app_context():
        server = made.enter_context(serve(receivers.answer))
        slow = made.enter_context(serve(_hang))
        agents = [_agent_with_webhook(app, f"{server.url}/{number}") for number in range(_TARGETS)]
        hanging = [_agent_with_webhook(app, f"{slow.url}/{number}") for number in range(_SLOW_TARGETS)]
        made.enter_context(_ticks(app))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as recorder:
            count = recorder.submit(_record, environment, agents, hanging, seconds).result()
        deadline = time.monotonic() + 60
        while len(receivers.delays) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        db.engine.dispose()
    delays = sorted(receivers.delays.values())
    p95 = delays[len(delays) * 95 // 100] if delays else float("inf")
    thresholds.print_note(
        f"{len(delays):,} of {count:,} arrived; half within {delays[len(delays) // 2]:.2f} s, 95 % within {p95:.2f} s; "
        f"{receivers.repeated} twice, {receivers.disordered} out of order"
    )
    return [
        # Of as many as were due; one process can be too slow to record them all.
        thresholds.at_least("events a minute that arrived", 60 * len(delays) / seconds, rate * 0.99, ""),
        thresholds.at_least("share of recorded events that arrived", 100 * len(delays) / count, 100, "%"),
        thresholds.at_most("95 % of events arrive within", p95, _MAX_DELAY_SECONDS, "s"),
        thresholds.at_most("events out of order", receivers.disordered, 0, ""),
    ]


def measure_hostile(infrastructure: Infrastructure, *, seconds: float) -> list[Threshold]:
    """Record notices of owners and events of other agents while the webhooks of some fail slowly with a backlog."""
    found = []
    for name, environment in (
        ("PostgreSQL", infrastructure.migrated("hostile", LOG_LEVEL="ERROR")),
        ("SQLite", infrastructure.migrated_sqlite("hostile", LOG_LEVEL="ERROR")),
    ):
        found += _measure_hostile(name, environment, seconds=seconds)
    return found


def _measure_hostile(name: str, environment: Mapping[str, str], *, seconds: float) -> list[Threshold]:
    backlog = _HOSTILE_AGENTS * _HOSTILE_WEBHOOKS * _HOSTILE_EVENTS
    thresholds.print_heading(
        f"Notices on {name} while {_HOSTILE_AGENTS} agents with {_HOSTILE_WEBHOOKS} webhooks that fail after "
        f"{_HOSTILE_SECONDS:.0f} s have {backlog:,} deliveries waiting"
    )
    receivers = _Receivers()
    with ExitStack() as made:
        mailbox = made.enter_context(running_mailbox())
        mail = {"SMTP_URL": f"smtp://127.0.0.1:{mailbox.port}", "MAIL_FROM": "purser@service.example"}
        app = create_app(Settings(**stack.settings_of({**environment, **mail})))
        made.enter_context(app.app_context())
        hostile = made.enter_context(serve(_fail_slowly))
        server = made.enter_context(serve(receivers.answer))
        for _ in range(_HOSTILE_AGENTS):
            agent = _agent_with_webhook(app, f"{hostile.url}/0")
            for number in range(1, _HOSTILE_WEBHOOKS):
                _add_webhook(agent, f"{hostile.url}/{number}")
            with unit_of_work() as session:
                for _ in range(_HOSTILE_EVENTS):
                    outbox.record(
                        session, EventType.PAYMENT_CONFIRMED, agent_id=agent, object_id=identifiers.new_id(), data={}
                    )  # fmt: skip
        quiet = [_agent_with_webhook(app, f"{server.url}/{number}") for number in range(_QUIET_AGENTS)]
        for number, agent in enumerate(quiet):
            targets.add_email(Subscriber(Audience.OWNER, agent), f"owner{number}@home.example", types=["wallet.*"])
        feed.number_all()
        made.enter_context(_ticks(app))
        time.sleep(2 * _TICK_SECONDS)
        sent: list[float] = []
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            number = len(sent)
            sent.append(time.time())
            data = {"number": number, "sent_at": sent[-1]}
            with unit_of_work() as session:
                outbox.record(
                    session, EventType.WALLET_FROZEN, agent_id=quiet[number % _QUIET_AGENTS],
                    object_id=identifiers.new_id(), data=data,
                )  # fmt: skip
            time.sleep(1.0)
        deadline = time.monotonic() + 60
        while (len(_noticed(mailbox)) < len(sent) or len(receivers.delays) < len(sent)) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
        notices = sorted(_noticed(mailbox).values())
        db.engine.dispose()
    victims = sorted(receivers.delays.values())
    thresholds.print_note(
        f"{len(sent)} events: {len(notices)} mails, half within {notices[len(notices) // 2]:.2f} s; {len(victims)} "
        f"webhooks, half within {victims[len(victims) // 2]:.2f} s; {len(hostile.asked)} slow failures meanwhile"
    )
    return [
        thresholds.at_least(f"{name}: notices that arrived", 100 * len(notices) / len(sent), 100, "%"),
        thresholds.at_most(f"{name}: 99 % of notices within", _p99(notices), _MAX_NOTICE_SECONDS, "s"),
        thresholds.at_most(f"{name}: 99 % of other agents' events within", _p99(victims), _MAX_VICTIM_SECONDS, "s"),
    ]


def _p99(delays: list[float]) -> float:
    return delays[len(delays) * 99 // 100] if delays else float("inf")


def _noticed(mailbox: Mailbox) -> dict[int, float]:
    """Return how long each notice took, by its number."""
    found = {}
    for arrived_at, (_, message) in zip(mailbox.arrived_at, mailbox.received, strict=False):
        for number, sent_at in re.findall(r"number: (\d+)\s+sent_at: ([\d.]+)", message):
            found[int(number)] = arrived_at - float(sent_at)
    return found


def _fail_slowly(_asked: Asked) -> Reply:
    time.sleep(_HOSTILE_SECONDS)
    return Reply(b"", 500)


def _hang(_asked: Asked) -> Reply:
    time.sleep(_SLOW_SECONDS)
    return Reply(b"", 204)


def _agent_with_webhook(app: Flask, url: str) -> str:
    answer = app.test_client().post("/v1/agents/register", json={})
    agent_id: str = answer.get_json()["agentId"]
    _add_webhook(agent_id, url)
    return agent_id


def _add_webhook(agent_id: str, url: str) -> None:
    targets.add(
        Subscriber(Audience.AGENT, agent_id), TargetKind.WEBHOOK, url=url, types=["*"], description="",
        secret=targets.new_secret(), claim=Claim.none(),
    )  # fmt: skip


def _record(environment: Mapping[str, str], agents: list[str], hanging: list[str], seconds: float) -> int:
    """Record events at the rate, each in a unit, and now and then one for a webhook that does not answer."""
    app = create_app(Settings(**stack.settings_of(environment)))
    objects = {agent: [identifiers.new_id() for _ in range(_OBJECTS_PER_AGENT)] for agent in [*agents, *hanging]}

    def record_share(first: int) -> int:
        """Record every fourth event, beginning with one, of agents that no other thread records events of."""
        started, number = time.monotonic(), first
        with app.app_context():
            while (passed := time.monotonic() - started) < seconds:
                if number >= passed * _EVENTS_PER_SECOND:
                    time.sleep(0.005)
                    continue
                _record_one(objects, agents[number % len(agents)], number)
                if number % 50 == 0:
                    _record_one(objects, hanging[number // 50 % len(hanging)], number)
                number += _RECORDERS
        return (number - first) // _RECORDERS

    with ThreadPoolExecutor(_RECORDERS) as threads:
        return sum(threads.map(record_share, range(_RECORDERS)))


def _record_one(objects: dict[str, list[str]], agent: str, number: int) -> None:
    data = {"number": number, "sent_at": clock.now().timestamp()}
    object_id = objects[agent][number // _TARGETS % _OBJECTS_PER_AGENT]
    with unit_of_work() as session:
        outbox.record(session, EventType.PAYMENT_CONFIRMED, agent_id=agent, object_id=object_id, data=data)


@contextmanager
def _ticks(app: Flask) -> Iterator[None]:
    """Run the worker's job as often as the scheduler enqueues it."""
    stop = threading.Event()

    def run() -> None:
        with app.app_context():
            while not stop.wait(_TICK_SECONDS):
                events.deliver()

    with beside(run, stop):
        yield
