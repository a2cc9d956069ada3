"""The Procfile's processes as a host runs them: a `postgres://` address, Redis, SIGTERM, a new release under load."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from sandbox.evm.node import EvmNode
from tests.support.chains import RECIPIENT
from tests.support.gateway import provider_settings
from tests.support.hosts import ROOT, START_SECONDS, Host, Web, as_hosts_write_it, environment_of
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
        postgres_url, redis_url, BASE_RPC_URL=base_node.url,
        **{name.upper(): str(value) for name, value in provider_settings(upstream.url).items()},
    )  # fmt: skip
    with ExitStack() as stack:
        yield Host(environment, tmp_path, stack)


def test_release_first_then_every_process_starts_and_a_doctor_finds_nothing_broken(
    host: Host, empty_database: str
) -> None:
    host.environment["DATABASE_URL"] = as_hosts_write_it(empty_database)
    host.release()
    web = host.web()
    host.start("worker")
    host.start("scheduler")

    def is_well() -> bool:
        checks = web.ask("GET", "/v1/health")[1]["checks"]
        return all(state == "ok" for state in checks.values())

    wait_until(is_well, START_SECONDS, what="workers to be alive")
    doctor = subprocess.run(
        ["flask", "--app", "wsgi", "doctor"],
        cwd=ROOT,
        env=host.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ok    database" in doctor.stdout
    assert "ok    workers" in doctor.stdout
    assert "FAIL  base" not in doctor.stdout


def test_a_stream_that_is_open_at_sigterm_is_finished_and_charged(
    host: Host, upstream: MisbehavingUpstream
) -> None:
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


def test_a_transfer_that_is_under_way_at_sigterm_is_answered_and_pays_once(
    host: Host, own_base_node: EvmNode
) -> None:
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


def test_the_request_behind_a_movement_is_told_in_the_lines_of_whoever_carries_it_on(
    host: Host, base_node: EvmNode
) -> None:
    web = host.web()
    made = web.ask("POST", "/v1/agents/register", {})[1]
    key, wallet = made["apiKey"], made["wallet"]
    base_node.rpc("anvil_setBalance", wallet["addresses"]["base"], hex(10**18))
    body = {"amount": "0.001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as connection:
        sent = {"Content-Type": "application/json", "X-API-Key": key, "Prefer": "respond-async"}
        connection.request("POST", f"/v1/wallets/{wallet['id']}/transfer", json.dumps(body), sent)
        answer = connection.getresponse()
        request_id, transaction_id = (
            answer.headers["X-Request-Id"],
            json.loads(answer.read())["transaction_id"],
        )
    # Whoever started it is gone: only the database can tell the worker.
    assert web.terminate() == 0
    host.start("worker")
    host.start("scheduler")

    def told() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in host.logs().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("caused_by") == request_id]

    wait_until(told, 60, what="a line of the worker about the request")
    (moved,) = [line for line in told() if line["event"] == "transaction_moved"]
    assert (moved["transaction_id"], moved["status"]) == (transaction_id, "confirmed")
    assert moved["request_id"] != request_id


def test_a_new_release_under_load_fails_no_request(host: Host) -> None:
    current = [host.web()]
    key = current[0].ask("POST", "/v1/agents/register", {})[1]["apiKey"]
    stop, failed, done = threading.Event(), [], [0] * 4

    def load(place: int) -> None:
        while not stop.is_set():
            try:
                status, _ = current[0].ask("GET", "/v1/balance", key=key)
                if status != HTTPStatus.OK:
                    failed.append(str(status))
            except OSError as error:
                failed.append(repr(error))
            done[place] += 1
            stop.wait(0.01)

    def everybody_has_gone_on() -> None:
        seen = list(done)
        wait_until(
            lambda: all(now >= before + 2 for now, before in zip(done, seen, strict=True)), 30,
            what="requests to go to the new one",
        )  # fmt: skip

    threads = [threading.Thread(target=load, args=[place]) for place in range(len(done))]
    for thread in threads:
        thread.start()
    try:
        # As a host does it: migrate, start the new one, send requests there, end the old one.
        host.release()
        old = current[0]
        current[0] = host.web()
        everybody_has_gone_on()
        assert old.terminate() == 0
        everybody_has_gone_on()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
