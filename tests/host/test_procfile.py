"""The processes of the Procfile as on a host: a `postgres://` URL, Redis, SIGTERM, a new release under load."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory

from sandbox.evm.node import EvmNode
from tests.support.chains import RECIPIENT
from tests.support.gateway import SEARCH, provider_settings
from tests.support.hosts import (
    ROOT,
    START_SECONDS,
    Host,
    KeptConnection,
    Router,
    Web,
    as_hosts_write_it,
    command_of,
    environment_of,
    start_program,
)
from tests.support.loopback_http import unused_url
from tests.support.servers import Postgres, free_port
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(300)]


@pytest.fixture
def upstream() -> Iterator[MisbehavingUpstream]:
    with misbehaving_upstream() as server:
        yield server


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    name = f"host_{free_port()}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def host(
    postgres_url: str, redis_url: str, base_node: EvmNode, upstream: MisbehavingUpstream, tmp_path: Path
) -> Iterator[Host]:
    environment = environment_of(
        postgres_url, redis_url, BASE_RPC_URL=base_node.url, ETHEREUM_RPC_URL=unused_url(),
        SOLANA_RPC_URL=unused_url(),
        **{name.upper(): str(value) for name, value in provider_settings(upstream.url).items()},
    )  # fmt: skip
    with ExitStack() as stack:
        yield Host(environment, tmp_path, stack)


def test_every_process_starts_after_the_release_and_the_doctor_finds_no_fault(host: Host, empty_database: str) -> None:
    host.is_executed = True
    host.environment["DATABASE_URL"] = as_hosts_write_it(empty_database)
    host.release()
    web = host.web()
    host.start("worker")
    host.start("scheduler")

    def is_well() -> bool:
        checks = web.ask("GET", "/v1/health")[1]["checks"]
        return all(state == "ok" for state in checks.values())

    wait_until(is_well, START_SECONDS, what="workers to be alive")
    log = host.folder / "doctor.txt"
    doctor = start_program([*command_of("release")[:-2], "doctor"], host.environment, log)
    status, found = doctor.wait(START_SECONDS), log.read_text()
    assert "ok    database" in found
    assert "ok    workers" in found
    # There is a node for Base only.
    failed = [line.split(":")[0] for line in found.splitlines() if line.startswith("FAIL")]
    assert failed == ["FAIL  ethereum", "FAIL  solana"], found
    assert status == 1
    assert web.terminate() == 0
    # Those of the file of audit heads are no log.
    lines = [json.loads(line) for line in host.logs().splitlines() if not line.startswith("head ")]
    own = [line["event"] for line in lines if line.get("logger") == "gunicorn.error"]
    assert own[0].startswith("Starting gunicorn"), "a line of gunicorn, as JSON like all others"
    assert own[-1] == "Shutting down: Master"


def test_a_stream_that_is_open_at_sigterm_is_completed_and_charged(host: Host, upstream: MisbehavingUpstream) -> None:
    web = host.web()
    key = web.ask("POST", "/v1/agents/register", {})[1]["apiKey"]

    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.chunk(b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n')
        exchange.wait_for("more")
        exchange.chunk(b"data: [DONE]\n\n")
        exchange.end_stream()

    upstream.behave = stream
    body = {"model": "gpt-4o-mini", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    sent = {"Content-Type": "application/json", "X-API-Key": key}
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
        connection.request("POST", "/v1/gateway/openai/chat/completions", json.dumps(body), sent)
        with connection.getresponse() as answer:
            assert b"one" in answer.readline()
            web.process.send_signal(signal.SIGTERM)
            upstream.open("more")
            assert b"[DONE]" in answer.read()
    assert web.process.wait(30) == 0
    logs = host.web().ask("GET", "/v1/usage", key=key)[1]["logs"]
    assert [log["provider"] for log in logs] == ["openai"]


def test_a_transfer_in_progress_at_sigterm_is_answered_and_pays_once(host: Host, own_base_node: EvmNode) -> None:
    host.environment["BASE_RPC_URL"] = own_base_node.url
    web = host.web()
    made = web.ask("POST", "/v1/agents/register", {})[1]
    key, wallet = made["apiKey"], made["wallet"]
    own_base_node.rpc("anvil_setBalance", wallet["addresses"]["base"], hex(10**18))
    # Nothing is mined, so the request waits for its confirmation.
    own_base_node.set_automine(False)
    answers: list[tuple[int, Any]] = []
    body = {"amount": "0.001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
    asking = threading.Thread(
        target=lambda: answers.append(web.ask("POST", f"/v1/wallets/{wallet['id']}/transfer", body, key=key))
    )
    asking.start()

    def rows(service: Web) -> list[str]:
        listed = service.ask("GET", f"/v1/wallets/{wallet['id']}/transactions", key=key)[1]["transactions"]
        return [row["status"] for row in listed]

    wait_until(lambda: rows(web), 30, what="the transfer to be recorded")
    status = web.terminate()
    asking.join()
    assert status == 0
    assert [(code, answer["status"]) for code, answer in answers] == [(200, "pending")]
    own_base_node.set_automine(True)
    host.start("worker")
    host.start("scheduler")
    after = host.web()
    wait_until(lambda: rows(after) == ["confirmed"], 60, what="the transfer to be confirmed")


def test_log_lines_of_a_worker_name_the_request_that_started_the_transfer(host: Host, base_node: EvmNode) -> None:
    web = host.web()
    made = web.ask("POST", "/v1/agents/register", {})[1]
    key, wallet = made["apiKey"], made["wallet"]
    base_node.rpc("anvil_setBalance", wallet["addresses"]["base"], hex(10**18))
    body = {"amount": "0.001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
        sent = {"Content-Type": "application/json", "X-API-Key": key, "Prefer": "respond-async"}
        connection.request("POST", f"/v1/wallets/{wallet['id']}/transfer", json.dumps(body), sent)
        answer = connection.getresponse()
        request_id, transaction_id = (answer.headers["X-Request-Id"], json.loads(answer.read())["transaction_id"])
    # The web process that started it is gone: the worker reads the request id from the database.
    assert web.terminate() == 0
    host.start("worker")
    host.start("scheduler")

    def lines_of_request() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in host.logs().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("caused_by") == request_id]

    wait_until(lines_of_request, 60, what="a log line of the worker with the request id")
    (moved,) = [line for line in lines_of_request() if line["event"] == "transaction_status_changed"]
    assert (moved["transaction_id"], moved["status"]) == (transaction_id, "confirmed")
    assert moved["request_id"] != request_id


def of_the_next_release(folder: Path) -> Path:
    """Write a migration of a later release, which adds columns to tables that every request uses."""
    migrations = Path(shutil.copytree(ROOT / "migrations", folder / "migrations"))
    (head,) = ScriptDirectory(str(migrations)).get_heads()
    changes = "\n".join(
        f'    op.execute("ALTER TABLE {table} ADD COLUMN of_the_next_release integer")' for table in _IN_USE
    )
    (migrations / "versions" / "next.py").write_text(
        f"""
from alembic import op
revision, down_revision, branch_labels, depends_on = "next", "{head}", None, None

def upgrade():
    op.execute("SET LOCAL statement_timeout = '2s'")
    op.execute("LOCK TABLE {", ".join(_IN_USE)} IN ACCESS EXCLUSIVE MODE")
    op.execute("SET LOCAL statement_timeout = 0")
{changes}
"""
    )
    return migrations


_IN_USE = ("agents", "api_keys", "credit_accounts", "transactions", "usage_logs")


@dataclass
class Load:
    """Clients that use the service continuously, each in a thread; failures are recorded."""

    router: Router
    key: str
    wallet: str
    stop: threading.Event = field(default_factory=threading.Event)
    failed: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def get(self) -> tuple[int, Any]:
        return self.router.ask("GET", "/v1/balance", key=self.key)

    def call(self) -> tuple[int, Any]:
        return self.router.ask("GET", SEARCH, key=self.key)

    def pay(self) -> tuple[int, Any]:
        body = {"amount": "0.0001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
        return self.router.ask("POST", f"/v1/wallets/{self.wallet}/transfer", body, key=self.key)

    def live(self, name: str, ask: Callable[[], tuple[int, Any]], pause: float) -> None:
        while not self.stop.is_set():
            try:
                status, answer = ask()
                if status != HTTPStatus.OK:
                    self.failed.append(f"{name}: {status} {answer}")
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{name}: {error!r}")
            self.done[name] += 1
            self.stop.wait(pause if not self.failed else 1)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        busy, resting = KeptConnection(self.router), KeptConnection(self.router)
        people: dict[str, tuple[Callable[[], tuple[int, Any]], float]] = {
            "new connections": (self.get, 0.03),
            "another": (self.get, 0.03),
            "kept-alive connection": (lambda: busy.ask("/v1/balance", self.key), 0.03),
            "idle kept-alive connection": (lambda: resting.ask("/v1/balance", self.key), 2.5),
            "upstream calls": (self.call, 0),
            "more upstream calls": (self.call, 0.3),
            "one who pays": (self.pay, 0),
        }
        threads = [threading.Thread(target=self.live, args=[name, *how]) for name, how in people.items()]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(self.done) == len(people), 60, what="all clients to be active")
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
            for kept in (busy, resting):
                kept.close()

    def all_continue(self) -> None:
        before = Counter(self.done)
        wait_until(
            lambda: all(self.done[name] > times for name, times in before.items()), 60,
            what="all clients to continue",
        )  # fmt: skip


def test_a_new_release_under_load_fails_no_request(
    host: Host, upstream: MisbehavingUpstream, own_base_node: EvmNode, tmp_path: Path
) -> None:
    host.environment["BASE_RPC_URL"] = own_base_node.url

    def take_a_second(exchange: Exchange) -> None:
        exchange.is_over(1)
        exchange.json({"results": []})

    upstream.behave = take_a_second
    old = host.web()
    router = Router(old)
    made = router.ask("POST", "/v1/agents/register", {})[1]
    key, wallet = made["apiKey"], made["wallet"]
    no_limits = dict.fromkeys(("daily_limit_usd", "weekly_limit_usd", "monthly_limit_usd"), 0)
    assert router.ask("PUT", f"/v1/wallets/{wallet['id']}/controls", no_limits, key)[0] == HTTPStatus.OK
    own_base_node.rpc("anvil_setBalance", wallet["addresses"]["base"], hex(10**18))
    history = f"/v1/wallets/{wallet['id']}/transactions?limit=1"

    def is_paying() -> bool:
        (newest,) = old.ask("GET", history, key=key)[1]["transactions"]
        return bool(newest["status"] == "pending")

    load = Load(router, key, wallet["id"])
    with load.going_on():
        # Like a host: migrate, start the new process, route requests there and terminate the old one immediately,
        # while upstream calls and a payment are in progress.
        host.release("--directory", str(of_the_next_release(tmp_path)))
        new = host.web()
        own_base_node.set_automine(False)
        wait_until(is_paying, 30, what="a payment that waits for its block")
        upstream.await_asked(len(upstream.asked) + 1)
        with old.stopped_workers():
            # These connections are in the accept backlog when the process is terminated.
            queued = [router.connect() for _ in range(5)]
            for connection in queued:
                connection.request("GET", "/v1/balance", headers={"X-API-Key": key})
            router.leave(old, new).process.send_signal(signal.SIGTERM)
        wait_until(lambda: not old.listens(), 30, what="the old process to stop listening")
        for connection in queued:
            with closing(connection), connection.getresponse() as answer:
                assert answer.status == HTTPStatus.OK
        own_base_node.set_automine(True)
        own_base_node.mine(1)
        assert old.process.wait(30) == 0
        load.all_continue()
        assert new.process.poll() is None, host.logs()[-3000:]
    assert load.failed == []
    calls = load.done["upstream calls"] + load.done["more upstream calls"]
    assert router.ask("GET", "/v1/usage?limit=1", key=key)[1]["summary"]["by_provider"]["brave"]["calls"] == calls
    paid = router.ask("GET", history, key=key)[1]["pagination"]["total"]
    assert paid == load.done["one who pays"]
    assert int(own_base_node.rpc("eth_getBalance", RECIPIENT, "latest"), 16) == paid * 10**14
