"""Administration with 100 000 agents: first and last pages of the API and the console, a change for 10 000 agents."""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import requests

from app import authenticated
from app.audit_log import actors
from app.config import Settings
from app.core.identifiers import new_id
from app.extensions import db
from app.factory import create_app
from app.idempotency.service import Claim
from app.identity import service as identity
from app.identity.principal import KeyKind
from app.platform import keys
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold

_FLEET = 10_000
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_MAX_PAGE_MS = 500.0
_MAX_RATIO = 2.0
_MAX_FLEET_SECONDS = 30.0
_MAX_CONSOLE_MS = 300.0
_AGENTS = "COPY agents (id, name, email, created_at) FROM STDIN"
_KEYS = "COPY api_keys (id, kind, agent_id, account_id, digest, sealed, created_at) FROM STDIN"
_OTHER_INSERTS = (
    """INSERT INTO credit_accounts (id, available_nanos, held_nanos, granted_nanos, spent_nanos, created_at)
       SELECT id, 0, 0, 0, 0, created_at FROM agents ON CONFLICT DO NOTHING""",
    """INSERT INTO wallets (id, agent_id, name, evm_address, solana_address, transaction_count, created_at)
       SELECT gen_random_uuid(), id, 'wallet-1', '0x' || substr(md5(id::text) || md5(id::text), 1, 40),
              substr(md5(id::text) || md5(id::text), 1, 44), 0, created_at FROM agents""",
    """INSERT INTO spending_accounts (wallet_id, agent_id, lock_version, counted_on, day_nanos, week_nanos, month_nanos,
              controls_version)
       SELECT id, agent_id, 0, current_date, 0, 0, 0, 1 FROM wallets""",
    """INSERT INTO spending_controls (wallet_id, daily_limit_nanos, weekly_limit_nanos, monthly_limit_nanos,
              per_tx_limit_nanos, allowed_addresses, allowed_domains, locked, updated_at)
       SELECT id, 100000000000, 500000000000, 1000000000000, 50000000000, '[]', '[]', false, created_at FROM wallets""",
    "VACUUM ANALYZE",
)


def measure(infrastructure: Infrastructure, *, agents: int, rounds: int) -> list[Threshold]:
    """Time pages of agents over HTTP, and one change for many agents."""
    environment = infrastructure.migrated("platform", LOG_LEVEL="WARNING")
    app = create_app(Settings(**stack.settings_of(environment)))
    with app.app_context():
        master_key = keys.create_master_key(
            actors.shell_actor(), name="bench", owner_email=None, claim=Claim.none()
        ).key
        _populate(infrastructure, agents)
        # They were not written by the service.
        authenticated.restamp_all(accepts_changed=True)
        db.engine.dispose()
    thresholds.print_heading(f"Administration of {agents:,} agents")
    with stack.running_service(infrastructure, environment) as service:
        promises = _pages(service, master_key, agents=agents, rounds=rounds)
        promises += _console(service, master_key, agents=agents, rounds=rounds)
        return [*promises, *_fleet(service, master_key, size=min(_FLEET, agents))]


def _populate(made: Infrastructure, agents: int) -> None:
    with made.database.connect("platform") as connection:
        rows = [(new_id(), identity.mint_api_key(KeyKind.AGENT)) for _ in range(agents)]
        with connection.cursor() as cursor:
            with cursor.copy(_AGENTS) as copy:
                for number, (agent_id, _) in enumerate(rows):
                    copy.write_row((agent_id, f"agent {number}", None, _created_at(number)))
            with cursor.copy(_KEYS) as copy:
                for number, (agent_id, key) in enumerate(rows):
                    copy.write_row((key.id, "ak", agent_id, agent_id, key.digest, key.sealed, _created_at(number)))
        for statement in _OTHER_INSERTS:
            connection.execute(statement)


def _created_at(number: int) -> str:
    """Return the instant at which an agent was made: one a second."""
    return str(_FIRST + timedelta(seconds=number))


def _pages(service: Service, master_key: str, *, agents: int, rounds: int) -> list[Threshold]:
    places = {"the first page": 0, "a page in the middle": agents // 2, "the last page": agents - 200}
    times: dict[tuple[str, int], list[float]] = {(name, size): [] for name in places for size in (50, 200)}
    for number in range(rounds + 1):
        for (name, size), spent in times.items():
            with _timed() as clock:
                body = _call(service, master_key, "GET", f"/agents?limit={size}&offset={places[name]}")
            assert len(body["agents"]) == size
            if number:  # the first round warms caches up
                spent.append(clock[0])
    medians = {key: thresholds.median(spent) for key, spent in times.items()}
    for (name, size), milliseconds in medians.items():
        thresholds.print_note(f"{name}, {size} agents with their keys: {milliseconds:.0f} ms")
    far = medians["the last page", 200]
    return [
        thresholds.at_most("the last page of 200 agents", far, _MAX_PAGE_MS, "ms"),
        thresholds.at_most("the last / the first page", far / medians["the first page", 200], _MAX_RATIO, "times"),
    ]


def _console(service: Service, master_key: str, *, agents: int, rounds: int) -> list[Threshold]:
    """Time pages of the console, for a person who has signed in."""
    place = f"http://127.0.0.1:{service.port}/admin"
    one = _call(service, master_key, "GET", "/agents?limit=1")["agents"][0]["id"]
    pages = {
        "overview": "", "agents": "/agents", "the last agents": f"/agents?offset={agents - 50}",
        "agents by name": "/agents?search=agent+19", "frozen agents": "/agents?frozen=true",
        "one agent": f"/agents/{one}",
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in pages}
    with requests.Session() as browser:
        form = browser.get(f"{place}/sign-in", timeout=60).text
        [token] = set(re.findall(r'name="csrf_token" value="([^"]+)"', form))
        browser.post(f"{place}/sign-in", {"csrf_token": token, "master_key": master_key}, timeout=60).raise_for_status()
        for number in range(rounds + 1):
            for name, path in pages.items():
                with _timed() as clock:
                    answer = browser.get(place + path, allow_redirects=False, timeout=60)
                assert answer.status_code == HTTPStatus.OK, (name, answer.status_code)
                if number:  # the first round warms caches up
                    times[name].append(clock[0])
    return [
        thresholds.at_most(f"the console's page: {name}", thresholds.median(spent), _MAX_CONSOLE_MS, "ms")
        for name, spent in times.items()
    ]


def _fleet(service: Service, master_key: str, *, size: int) -> list[Threshold]:
    ids: list[str] = []
    while len(ids) < size:
        page = _call(service, master_key, "GET", f"/agents?limit=200&offset={len(ids)}")
        ids += [agent["id"] for agent in page["agents"]]
    spent = []
    for limit in (10, 10):
        with _timed() as clock:
            body = _call(service, master_key, "PUT", "/controls", {"agent_ids": ids[:size], "daily_limit_usd": limit})
        assert body["updated"] is True
        spent.append(clock[0] / 1000)
    thresholds.print_note(
        f"controls of {size:,} agents, all changed: {spent[0]:.1f} s; repeated, none changed: {spent[1]:.1f} s"
    )
    return [thresholds.at_most(f"controls of {size:,} agents in one call", spent[0], _MAX_FLEET_SECONDS, "s")]


def _call(service: Service, master_key: str, method: str, path: str, body: object = None) -> Any:
    sent = b"" if body is None else json.dumps(body).encode()
    status, answer = service.call(method, f"/v1/platform{path}", sent, **{"X-Master-Key": master_key})
    assert status == HTTPStatus.OK, answer[:300]
    return json.loads(answer)


@contextlib.contextmanager
def _timed() -> Iterator[list[float]]:
    """Yield a list that holds the milliseconds once the context has ended."""
    spent: list[float] = []
    started = time.perf_counter()
    yield spent
    spent.append((time.perf_counter() - started) * 1000)
