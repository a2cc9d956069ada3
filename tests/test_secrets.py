"""A canary of every secret, driven through every failing path at DEBUG: none is ever seen outside its place."""

from __future__ import annotations

import base64
import json
import logging
import os
import sqlite3
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flask import Flask
from flask.testing import FlaskClient
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer
from sqlalchemy import select
from werkzeug.test import TestResponse

from app import wiring
from app.adapters import derivation
from app.adapters.queue_rq import RqQueue
from app.agents import service as agents
from app.config import Settings
from app.core.chains import ChainName
from app.core.unit_of_work import reading
from app.extensions import db
from app.factory import create_app
from app.identity import service as identity
from app.identity.caller import KeyKind
from app.jobs import JobName, QueueName
from app.ports import provider
from app.ports.vault import Place
from app.wallets import custody
from app.wallets.models import WalletKey
from tests.support.agents import Agent, register
from tests.support.applications import settings_for
from tests.support.chains import RECIPIENT
from tests.support.loopback_http import Reply, serve, unused_url
from tests.support.servers import free_port, redis_server
from workers import schedule

ROOT = Path(__file__).resolve().parents[1]
MASTER_KEY = "mk_canary-master-" + "M" * 32
RPC_KEY = "canary-rpc-key-0123456789"
REDIS_PASSWORD = "canary-redis-password"
DATABASE_PASSWORD = "canary-database-password"
SECRET_KEY = "canary-secret-key-" + "S" * 32
PRICE_KEY = "canary-price-api-key"
BODY = "canary-in-a-body"


def _key(letter: str) -> tuple[str, bytes]:
    raw = letter.encode() * 32
    return f"k1:{base64.b64encode(raw).decode()}", raw


ENCRYPTION_KEYS, ENCRYPTION_KEY = _key("E")
CODE_PEPPERS, PEPPER = _key("P")


class Canaries:
    """Every secret in every spelling in which it could leak, by what it is."""

    def __init__(self) -> None:
        self.spellings: dict[str, str] = {}
        for name, text in {
            "master key": MASTER_KEY, "RPC key": RPC_KEY, "Redis password": REDIS_PASSWORD,
            "database password": DATABASE_PASSWORD, "secret key": SECRET_KEY, "price key": PRICE_KEY, "body": BODY,
        }.items():  # fmt: skip
            self.add_text(name, text)
        self.add_bytes("encryption key", ENCRYPTION_KEY)
        self.add_bytes("pepper", PEPPER)

    def add_text(self, name: str, text: str) -> None:
        self.spellings[name] = text
        # What is left when a log's net blanks only the part that it recognises.
        if len(text) >= 40:
            self.spellings[f"{name} (end)"] = text[-20:]

    def add_bytes(self, name: str, raw: bytes) -> None:
        self.spellings |= {
            f"{name} (hex)": raw.hex(),
            f"{name} (base64)": base64.b64encode(raw).decode().rstrip("="),
            f"{name} (base64url)": base64.urlsafe_b64encode(raw).decode().rstrip("="),
            f"{name} (repr)": repr(raw)[2:-1],
            f"{name} (integer)": str(int.from_bytes(raw, "big")),
        }

    def add_agent(self, client: FlaskClient) -> Agent:
        answer = client.post("/v1/agents/register", json={"name": BODY, "email": "canary@example.com"})
        body = answer.get_json()
        assert answer.status_code == 201, body
        wallet = body["wallet"]
        agent = Agent(
            client, body["agentId"], body["apiKey"], wallet["id"], wallet["addresses"]["base"],
            wallet["addresses"]["solana"],
        )  # fmt: skip
        self.add_text("API key", agent.key)
        self.add_text("claim code", body["claimCode"])
        self.add_wallet(agent.wallet_id)
        return agent

    def add_wallet(self, wallet_id: str) -> None:
        with reading() as session:
            sealed = session.scalars(select(WalletKey.sealed).where(WalletKey.wallet_id == wallet_id)).one()
        entropy = provider.current().vault.open(sealed, custody.place(wallet_id))
        evm, solana = derivation.wallet_keys(entropy)
        private = solana.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        self.add_text("mnemonic", derivation.phrase(entropy))
        for name, raw in (("entropy", entropy), ("EVM key", evm.secret), ("Solana key", private)):
            self.add_bytes(name, raw)

    def found_in(self, text: str) -> list[str]:
        return [name for name, spelling in self.spellings.items() if spelling in text]


class Ears(logging.Handler):
    """Hears every record before any net blanks it, with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard += [repr(record.msg), repr(record.args)]
        exc_info = record.exc_info or sys.exc_info()
        if exc_info[0] is not None:
            self.heard.append("".join(traceback.format_exception(*exc_info)))


@contextmanager
def listening() -> Iterator[Ears]:
    ears, root = Ears(), logging.getLogger()
    level = root.level
    root.addHandler(ears)
    try:
        yield ears
    finally:
        root.removeHandler(ears)
        root.setLevel(level)


def canary_settings(database_url: str, rpc_url: str, **changes: Any) -> Settings:
    with_key = f"{rpc_url.replace('http://', f'http://user:{RPC_KEY}@')}/v2/{RPC_KEY}"
    return settings_for(
        database_url,
        **{
            "log_level": "DEBUG",
            "redis_url": f"redis://:{REDIS_PASSWORD}@127.0.0.1:1/0",
            "secret_key": SECRET_KEY,
            "encryption_keys": ENCRYPTION_KEYS,
            "code_peppers": CODE_PEPPERS,
            "bootstrap_master_key": MASTER_KEY,
            "coingecko_api_key": PRICE_KEY,
            "ethereum_rpc_url": with_key,
            "base_rpc_url": f"{with_key}a,{with_key}b",
            "solana_rpc_url": with_key,
            "faucet_url": rpc_url,
            "price_overrides": "",
            "rate_limit_per_key": "1000 per minute",
            "registration_rate_limit": "1000 per minute",
            "device_miss_limit": "1000 per hour",
            **changes,
        },
    )


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


@contextmanager
def running(settings: Settings) -> Iterator[Flask]:
    """Run the service as wired for real, and put the tests' own logging back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    app = create_app(settings)
    app.testing = True
    try:
        with app.app_context():
            yield app
            db.engine.dispose()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def fail_everywhere(agent: Agent, canaries: Canaries) -> Iterator[TestResponse]:
    """Walk every path that can fail with secrets in the caller's hands."""
    client, url = agent.client, agent.wallet_url
    idempotent = {"Idempotency_Key": "k"}
    movement = {"amount": "1", "currency": "ETH", "chain": "base", "to": RECIPIENT, "memo": BODY}
    code = canaries.spellings["claim code"]
    yield agent.get(f"{url}/balances")
    for how in ("transfer", "withdraw"):
        agent.unlimited()
        for chain in ("base", "ethereum"):
            yield agent.post(f"{url}/{how}", {**movement, "chain": chain}, **idempotent)
            yield agent.post(f"{url}/{how}", {**movement, "chain": chain, "dry_run": True})
        yield agent.post(f"{url}/{how}", {**movement, "amount": BODY})
    agent.controls(per_tx_limit_usd=1)
    yield agent.post(f"{url}/transfer", movement)
    yield agent.post(
        f"{url}/fund", {"amount": "1", "currency": "ETH", "chain": "base", "note": BODY}, **idempotent
    )
    yield agent.post("/v1/wallets", {"name": [BODY]}, **idempotent)
    yield agent.put(f"{url}/controls", {"allowed_addresses": [agent.key, 1]})
    for raw in (f'{{"name": "{BODY}', f'["{agent.key}"]', f'{{"name": {agent.key}}}'):
        yield client.post("/v1/wallets", data=raw, headers=agent.headers())
    for header in ("X-API-Key", "X-Master-Key", "Authorization", "Cookie"):
        for value in (agent.key + "x", MASTER_KEY, f"Bearer {agent.key}", "x" * 9000):
            yield client.get("/v1/usage", headers={header: value})
    for path in (
        "/v1/wallets/{}",
        "/v1/{}",
        "/{}",
        "/v1/wallets?limit={}",
        "/v1/device/info?code={}x",
        "/static/{}",
    ):
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
def test_no_secret_is_seen_however_requests_and_workers_fail(
    kind: str, canaries: Canaries, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = DEAD_NODES[kind]
    seen: list[str] = []
    with serve(lambda _asked: reply() if reply else Reply(b"")) as node:
        url = node.url if reply else unused_url()
        with running(canary_settings(sqlite_url, url)) as app, listening() as ears:
            client = app.test_client()
            agent = canaries.add_agent(client)
            gateway = client.post("/v1/keys", json={}).get_json()
            canaries.add_text("gateway key", gateway["api_key"])
            ears.heard.clear()
            seen += failing(fail_everywhere(agent, canaries))
            # The form shows the code again to the person who typed it.
            client.post("/device", data={"code": canaries.spellings["claim code"], "email": BODY})
            schedule.tick(with_sweep=True)
            break_tables(sqlite_url, "transactions", "wallet_keys", "idempotency_keys")
            seen += failing(iter([
                agent.post("/v1/wallets", {"name": BODY}),
                agent.post("/v1/wallets", {"name": BODY}, Idempotency_Key=BODY),
                agent.post(f"{agent.wallet_url}/fund", {"amount": "1", "currency": "ETH", "chain": "base"}),
                agent.get(f"{agent.wallet_url}/transactions"),
                client.post("/v1/agents/register", json={"name": BODY, "email": "canary@example.com"}),
            ]))  # fmt: skip
            schedule.tick(with_sweep=True)
            break_tables(sqlite_url, "api_keys")
            seen += failing(
                iter([agent.get("/v1/wallets"), client.post("/v1/keys", json={"email": "c@example.com"})])
            )
            heard = ears.heard[:]
    written = "".join(capfd.readouterr())
    assert len(heard) > 100
    assert "Traceback" in "".join(heard)
    for place, text in {"answers": "\n".join(seen), "output": written, "records": "\n".join(heard)}.items():
        for name in canaries.found_in(text):
            at = text.index(canaries.spellings[name])
            pytest.fail(f"the {name} is in the {place}: …{text[max(0, at - 300) : at + 100]}")


def test_the_claim_of_an_agent_shows_its_secrets_to_the_claimer_only(
    canaries: Canaries, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(canary_settings(sqlite_url, unused_url())) as app, listening() as ears:
        client = app.test_client()
        canaries.add_agent(client)
        code = canaries.spellings["claim code"]
        claimed = client.post("/v1/device/claim", json={"code": code, "email": "canary@example.com"})
        assert claimed.status_code == 200, claimed.get_data(as_text=True)
        canaries.add_text("owner key", claimed.get_json()["ownerKey"])
        late = client.post("/v1/device/claim", json={"code": code, "email": "late@example.com"})
        page = client.get(f"/device?code={code}")
        assert late.status_code in (403, 409)
        heard = "\n".join(ears.heard)
    assert canaries.found_in(heard + "".join(capfd.readouterr())) == []
    assert canaries.found_in(late.get_data(as_text=True)) == []
    assert {"owner key", "API key"}.isdisjoint(canaries.found_in(page.get_data(as_text=True)))


def test_a_database_server_that_refuses_us_is_not_told_with_its_password(
    canaries: Canaries, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"postgresql://purser:{DATABASE_PASSWORD}@127.0.0.1:1/purser?application_name={BODY}"
    with running(canary_settings(url, unused_url())) as app, listening() as ears:
        client = app.test_client()
        key = "ak_" + "A" * 43
        answers = [
            client.get("/v1/health"),
            client.post("/v1/agents/register", json={"name": BODY}),
            client.get("/v1/wallets", headers={"X-API-Key": key}),
        ]
        schedule.tick(with_sweep=True)
        text = "\n".join([*ears.heard, *(answer.get_data(as_text=True) for answer in answers)])
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
def test_a_service_that_does_not_start_says_why_without_saying_secrets(
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


def test_the_command_line_does_not_say_them_either(canaries: Canaries, sqlite_url: str) -> None:
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
            listening() as ears,
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
                assert queue.put(job, *arguments)
            break_tables(sqlite_url, "work_leases", "transactions")
            stored = dump(redis)
            worker = SimpleWorker(
                [Queue(name.value, connection=redis, serializer=JSONSerializer) for name in QueueName],
                connection=redis,
                serializer=JSONSerializer,
            )
            worker.work(burst=True, logging_level="DEBUG")
            stored += dump(redis)
            heard = "\n".join(ears.heard)
    logging.getLogger("rq.worker").handlers.clear()
    assert "workers.deposits.pay_from_faucet" in stored
    assert "OperationalError" in stored + heard
    assert canaries.found_in(stored + heard + "".join(capfd.readouterr())) == []


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


def test_nothing_that_holds_a_secret_shows_it(canaries: Canaries, sqlite_url: str) -> None:
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
            settings, ports, ports.chains, ports.vault, ports.prices, ports.queue, ports.faucet,
            *ports.chains.values(), *(getattr(chain, "rpc", None) for chain in ports.chains.values()),
            signer, app, app.extensions["settings"], app.extensions["ports"], registered, gateway, minted,
            Place("a", "b", "c"), custody.new_key(), db, db.engine, db.engine.pool, JobName.CONFIRM, ChainName.BASE,
        ]  # fmt: skip
        shown = "\n".join(f"{thing!r} {thing!s} {thing:}" for thing in things)
    assert canaries.found_in(shown) == []


def test_a_key_that_is_logged_by_mistake_is_blanked_before_it_is_written(
    sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = [
        f"{prefix}_canary{letter * 40}"
        for prefix, letter in zip(("ak", "gw", "mk", "ok"), "abcd", strict=True)
    ]
    url = f"redis://:{REDIS_PASSWORD}@127.0.0.1/0"
    with running(canary_settings(sqlite_url, "http://127.0.0.1:1")):
        ours, foreign = structlog.get_logger("ours"), logging.getLogger("foreign")
        ours.info("told", keys=keys, nested={"deep": (url, keys[0])}, error=ValueError(keys[1]))
        foreign.warning("told %s and %s", keys[2], url)
        try:
            int(f"{keys[3]} {url}")
        except ValueError:
            ours.exception("failed")
            foreign.exception("failed")
    written = "".join(capfd.readouterr())
    assert written.count('"failed"') == 2
    assert "ak_…" in written.encode().decode("unicode_escape") or "ak_\\u2026" in written
    assert [secret for secret in (*keys, REDIS_PASSWORD) if secret in written] == []
