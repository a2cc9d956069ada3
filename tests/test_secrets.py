"""Canary values for every secret, in every failing path at DEBUG: none leaks."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer
from werkzeug.test import TestResponse

from app import wiring
from app.adapters.redis_stores import RqQueue
from app.agents import service as agents
from app.core.chains import ChainName
from app.extensions import db
from app.identity import service as identity
from app.identity.principal import KeyKind
from app.jobs import JobName, QueueName
from app.ports.vault import SecretLocation
from app.wallets.core import custody
from tests.support.agents import Agent, register
from tests.support.canaries import (
    BODY,
    CODE_PEPPERS,
    DATABASE_PASSWORD,
    ENCRYPTION_KEYS,
    MASTER_KEY,
    REDIS_PASSWORD,
    RPC_KEY,
    SECRET_KEY,
    Canaries,
    canary_settings,
    capturing_records,
    running,
)
from tests.support.chains import RECIPIENT
from tests.support.loopback_http import Reply, serve, unused_url
from tests.support.servers import free_port, redis_server
from workers import schedule

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def fail_everywhere(agent: Agent, canaries: Canaries) -> Iterator[TestResponse]:
    """Run every path that can fail with secrets of the client."""
    client, url = agent.client, agent.wallet_url
    idempotent = {"Idempotency_Key": "k"}
    movement = {"amount": "1", "currency": "ETH", "chain": "base", "to": RECIPIENT, "memo": BODY}
    code = canaries.encodings["claim code"]
    yield agent.get(f"{url}/balances")
    for how in ("transfer", "withdraw"):
        agent.unlimited()
        for chain in ("base", "ethereum"):
            yield agent.post(f"{url}/{how}", {**movement, "chain": chain}, **idempotent)
            yield agent.post(f"{url}/{how}", {**movement, "chain": chain, "dry_run": True})
        yield agent.post(f"{url}/{how}", {**movement, "amount": BODY})
    agent.controls(per_tx_limit_usd=1)
    yield agent.post(f"{url}/transfer", movement)
    yield agent.post(f"{url}/fund", {"amount": "1", "currency": "ETH", "chain": "base", "note": BODY}, **idempotent)
    yield agent.post("/v1/wallets", {"name": [BODY]}, **idempotent)
    yield agent.put(f"{url}/controls", {"allowed_addresses": [agent.key, 1]})
    for raw in (f'{{"name": "{BODY}', f'["{agent.key}"]', f'{{"name": {agent.key}}}'):
        yield client.post("/v1/wallets", data=raw, headers=agent.headers())
    for header in ("X-API-Key", "X-Master-Key", "Authorization", "Cookie"):
        for value in (agent.key + "x", MASTER_KEY, f"Bearer {agent.key}", "x" * 9000):
            yield client.get("/v1/usage", headers={header: value})
    for path in ("/v1/wallets/{}", "/v1/{}", "/{}", "/v1/wallets?limit={}", "/v1/device/info?code={}x", "/static/{}"):
        for value in (agent.key, MASTER_KEY, code):
            yield client.get(path.format(value), headers=agent.headers())
    yield client.post("/v1/device/claim", json={"code": code, "email": "other@example.com"})
    yield client.post("/v1/device/claim", json={"code": code})
    yield client.post("/v1/device/claim", data=f'{{"code": "{code}')
    yield client.delete("/v1/agents/register", json={"name": BODY})
    yield client.post("/v1/agents/register", json={"email": BODY})
    yield client.post("/v1/keys", json={"email": [BODY]})


def failing(answers: Iterator[TestResponse]) -> list[str]:
    seen = []
    for answer in answers:
        assert answer.status_code >= 400, (answer.request.path, answer.get_data(as_text=True))
        seen.append(f"{answer.headers} {answer.get_data(as_text=True)}")
    return seen


def break_tables(url: str, *tables: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        for table in tables:
            connection.execute(f"DROP TABLE {table}")
    connection.close()


DEAD_NODES: dict[str, Callable[[], Reply] | None] = {
    "refused": None,
    "500 that quotes": lambda: Reply(f"no such project: {RPC_KEY}".encode(), status=500),
    "200 that quotes": lambda: Reply(
        json.dumps({"jsonrpc": "2.0", "id": 0, "error": {"code": -1, "message": RPC_KEY}}).encode()
    ),
    "hangs up": lambda: Reply(None),
}


@pytest.mark.parametrize("kind", DEAD_NODES)
def test_no_secret_leaks_however_requests_and_workers_fail(
    kind: str, canaries: Canaries, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = DEAD_NODES[kind]
    seen: list[str] = []
    with serve(lambda _asked: reply() if reply else Reply(b"")) as node:
        url = node.url if reply else unused_url()
        with running(canary_settings(sqlite_url, url)) as app, capturing_records() as capture:
            client = app.test_client()
            agent = canaries.add_agent(client)
            gateway = client.post("/v1/keys", json={}).get_json()
            canaries.add_text("gateway key", gateway["api_key"])
            capture.records.clear()
            seen += failing(fail_everywhere(agent, canaries))
            # The form shows the code again to the owner who entered it.
            client.post("/device", data={"code": canaries.encodings["claim code"], "email": BODY})
            schedule.tick(include_sweep=True)
            break_tables(sqlite_url, "transactions", "wallet_keys", "idempotency_keys")
            seen += failing(iter([
                agent.post("/v1/wallets", {"name": BODY}),
                agent.post("/v1/wallets", {"name": BODY}, Idempotency_Key=BODY),
                agent.post(f"{agent.wallet_url}/fund", {"amount": "1", "currency": "ETH", "chain": "base"}),
                agent.get(f"{agent.wallet_url}/transactions"),
                client.post("/v1/agents/register", json={"name": BODY, "email": "canary@example.com"}),
            ]))  # fmt: skip
            schedule.tick(include_sweep=True)
            break_tables(sqlite_url, "api_keys")
            seen += failing(iter([agent.get("/v1/wallets"), client.post("/v1/keys", json={"email": "c@example.com"})]))
            records = capture.records[:]
    written = "".join(capfd.readouterr())
    assert len(records) > 100
    assert "Traceback" in "".join(records)
    for place, text in {"answers": "\n".join(seen), "output": written, "records": "\n".join(records)}.items():
        for name in canaries.found_in(text):
            at = text.index(canaries.encodings[name])
            pytest.fail(f"the {name} is in the {place}: …{text[max(0, at - 300) : at + 100]}")


def test_the_claim_of_an_agent_shows_its_secrets_to_the_claimer_only(
    canaries: Canaries, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(canary_settings(sqlite_url, unused_url())) as app, capturing_records() as capture:
        client = app.test_client()
        canaries.add_agent(client)
        code = canaries.encodings["claim code"]
        claimed = client.post("/v1/device/claim", json={"code": code, "email": "canary@example.com"})
        assert claimed.status_code == 200, claimed.get_data(as_text=True)
        canaries.add_text("owner key", claimed.get_json()["ownerKey"])
        late = client.post("/v1/device/claim", json={"code": code, "email": "late@example.com"})
        page = client.get(f"/device?code={code}")
        assert late.status_code == 409
        records = "\n".join(capture.records)
    assert canaries.found_in(records + "".join(capfd.readouterr())) == []
    assert canaries.found_in(late.get_data(as_text=True)) == []
    assert {"owner key", "API key"}.isdisjoint(canaries.found_in(page.get_data(as_text=True)))


def test_a_refused_database_connection_is_not_logged_with_its_password(
    canaries: Canaries, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"postgresql://purser:{DATABASE_PASSWORD}@127.0.0.1:1/purser?application_name={BODY}"
    with running(canary_settings(url, unused_url())) as app, capturing_records() as capture:
        client = app.test_client()
        key = "ak_" + "A" * 43
        answers = [
            client.get("/v1/health"),
            client.post("/v1/agents/register", json={"name": BODY}),
            client.get("/v1/wallets", headers={"X-API-Key": key}),
        ]
        schedule.tick(include_sweep=True)
        text = "\n".join([*capture.records, *(answer.get_data(as_text=True) for answer in answers)])
    assert {answer.status_code // 100 for answer in answers} == {5}
    assert "Traceback" in text
    assert canaries.found_in(text + "".join(capfd.readouterr())) == []


BAD_SETTINGS: list[dict[str, str]] = [
    {"encryption_keys": f"k1:{BODY}"},
    {"encryption_keys": f"{ENCRYPTION_KEYS},{ENCRYPTION_KEYS}"},
    {"encryption_keys": BODY},
    {"encryption_keys": ""},
    {"code_peppers": f"k1:{BODY}"},
    {"secret_key": ""},
    {"price_overrides": BODY, "ethereum_rpc_url": f"http://127.0.0.1:1/{RPC_KEY}"},
    {"port": "70000"},
    {"database_url": BODY},
    {"database_url": f"oracle://u:{DATABASE_PASSWORD}@h/d"},
    {"database_url": f"postgresql://u:{DATABASE_PASSWORD}@h:port/d"},
    {"redis_url": BODY},
    {"redis_url": f"http://:{REDIS_PASSWORD}@127.0.0.1:1/0"},
    {"redis_url": f"redis://:{REDIS_PASSWORD}/with/slashes@127.0.0.1:1/0"},
    {"redis_url": f"unix://:{REDIS_PASSWORD}@/tmp/redis.sock"},
    {"base_rpc_url": f"htp://{RPC_KEY}"},
    {"base_rpc_url": RPC_KEY},
    {"base_rpc_url": f"http://[{RPC_KEY}"},
    {"solana_rpc_url": f"http://[{RPC_KEY}"},
    {"solana_rpc_url": RPC_KEY},
]


@pytest.mark.parametrize("bad", BAD_SETTINGS, ids="-".join)
def test_a_failed_start_is_explained_without_secrets(
    bad: dict[str, str], canaries: Canaries, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said = ""
    try:
        with running(canary_settings(sqlite_url, "http://127.0.0.1:1", **bad)) as app:
            client = app.test_client()
            agent = register(client)
            said += agent.get(f"{agent.wallet_url}/balances").get_data(as_text=True)
            said += client.get("/v1/health").get_data(as_text=True)
    except Exception as error:
        said += "".join(traceback.format_exception(error)) + repr(error)
    assert canaries.found_in(said + "".join(capfd.readouterr())) == []


def test_the_command_line_prints_no_secret(canaries: Canaries, sqlite_url: str) -> None:
    environment = {
        "PATH": os.environ["PATH"], "DATABASE_URL": sqlite_url, "SECRET_KEY": SECRET_KEY, "CODE_PEPPERS": CODE_PEPPERS,
        "ENCRYPTION_KEYS": f"k1:{BODY}", "BOOTSTRAP_MASTER_KEY": MASTER_KEY, "LOG_LEVEL": "DEBUG",
    }  # fmt: skip
    command = [sys.executable, "-c", "import wsgi"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "ENCRYPTION_KEYS" in ended.stderr
    assert canaries.found_in(ended.stdout + ended.stderr) == []


@pytest.mark.redis
def test_jobs_carry_no_secret_and_their_failures_leave_none_in_redis(
    canaries: Canaries, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with redis_server(port=port) as open_url:
        with Redis.from_url(open_url) as client:
            client.config_set("requirepass", REDIS_PASSWORD)
        url = open_url.replace("redis://", f"redis://:{REDIS_PASSWORD}@")
        with (
            running(canary_settings(sqlite_url, unused_url(), redis_url=url)) as app,
            capturing_records() as capture,
            Redis.from_url(url) as redis,
        ):
            agent = canaries.add_agent(app.test_client())
            queue = RqQueue(url)
            for job, arguments in {
                JobName.CONFIRM: ("base",),
                JobName.FIND_DEPOSITS: ("base",),
                JobName.PAY_FROM_FAUCET: (agent.wallet_id,),
                JobName.SWEEP: (),
                JobName.AUDIT: (),
            }.items():
                assert queue.enqueue(job, *arguments)
            break_tables(sqlite_url, "work_leases", "transactions")
            stored = dump(redis)
            worker = SimpleWorker(
                [Queue(name.value, connection=redis, serializer=JSONSerializer) for name in QueueName],
                connection=redis,
                serializer=JSONSerializer,
            )
            worker.work(burst=True, logging_level="DEBUG")
            stored += dump(redis)
            records = "\n".join(capture.records)
    logging.getLogger("rq.worker").handlers.clear()
    assert "workers.deposits.pay_from_faucet" in stored
    assert "OperationalError" in stored + records
    assert canaries.found_in(stored + records + "".join(capfd.readouterr())) == []


def dump(redis: Any) -> str:
    """Return everything that Redis holds, compressed job data unpacked."""
    found = []
    for key in redis.scan_iter():
        kind = redis.type(key).decode()
        if kind == "hash":
            for field, value in redis.hgetall(key).items():
                try:
                    found.append(f"{field!r} {zlib.decompress(value)!r}")
                except zlib.error:
                    found.append(f"{field!r} {value!r}")
        else:
            found.append(f"{key!r} {redis.dump(key)!r}")
    return "\n".join(found)


def test_no_repr_of_a_secret_holder_contains_the_secret(canaries: Canaries, sqlite_url: str) -> None:
    settings = canary_settings(sqlite_url, "http://127.0.0.1:1")
    with running(settings) as app:
        agent = canaries.add_agent(app.test_client())
        ports = wiring.build(settings)
        registered = agents.register(name=None, email=None)
        gateway = agents.issue_gateway_key(email=None)
        minted = identity.mint_api_key(KeyKind.AGENT)
        for name, text in (
            ("registered key", registered.api_key), ("registered code", registered.claim_code),
            ("gateway key", gateway.api_key), ("minted key", minted.key),
        ):  # fmt: skip
            canaries.add_text(name, text)
        signer = custody.signer_of(agent.wallet_id)
        things: list[object] = [
            settings,
            ports,
            ports.chains,
            ports.vault,
            ports.prices,
            ports.queue,
            ports.faucet,
            *ports.chains.values(),
            *(getattr(chain, "rpc", None) for chain in ports.chains.values()),
            signer,
            app,
            app.state.settings,
            app.state.ports,
            registered,
            gateway,
            minted,
            SecretLocation("a", "b", "c"),
            custody.new_key(),
            db,
            db.engine,
            db.engine.pool,
            JobName.CONFIRM,
            ChainName.BASE,
        ]
        shown = "\n".join(f"{thing!r} {thing!s} {thing:}" for thing in things)
    assert canaries.found_in(shown) == []


def test_a_key_logged_by_mistake_is_redacted(sqlite_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    keys = [f"{prefix}_canary{letter * 40}" for prefix, letter in zip(("ak", "gw", "mk", "ok"), "abcd", strict=True)]
    url = f"redis://:{REDIS_PASSWORD}@127.0.0.1/0"
    with running(canary_settings(sqlite_url, "http://127.0.0.1:1")):
        ours, foreign = structlog.get_logger("ours"), logging.getLogger("foreign")
        ours.info("message", keys=keys, nested={"deep": (url, keys[0])}, error=ValueError(keys[1]))
        foreign.warning("message %s and %s", keys[2], url)
        try:
            int(f"{keys[3]} {url}")
        except ValueError:
            ours.exception("failed")
            foreign.exception("failed")
    written = "".join(capfd.readouterr())
    assert written.count('"failed"') == 2
    assert "ak_…" in written.encode().decode("unicode_escape") or "ak_\\u2026" in written
    assert [secret for secret in (*keys, REDIS_PASSWORD) if secret in written] == []
