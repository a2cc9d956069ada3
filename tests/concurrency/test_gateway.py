"""Concurrent calls and dying processes: only affordable calls are charged, and every hold ends."""

from __future__ import annotations

import http.client
import json
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
import time_machine
from flask import Flask

from app.core import clock
from app.core.identifiers import digest
from app.usage import service as usage
from tests.support.gateway import CHAT, QUESTION, gateway_stage, provider_settings
from tests.support.services import web_service
from tests.support.upstreams import Exchange, chat_answer, chat_chunks, misbehaving_upstream
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from workers import sweeps

CONCURRENT = 200
AFFORDABLE = 20
# Units run concurrently on PostgreSQL alone; on SQLite what a process does in groups has the same order for both.
ON_EACH_DATABASE = pytest.mark.parametrize(
    ("database_url", "fixed"),
    [("postgres", True), ("postgres", False), ("sqlite", False)],
    ids=["postgres-a fixed price", "postgres-a cost known afterwards", "sqlite-a cost known afterwards"],
    indirect=["database_url"],
)


@ON_EACH_DATABASE
def test_of_concurrent_calls_exactly_the_affordable_ones_are_charged(database_url: str, *, fixed: bool) -> None:
    price_nanos = 5_000_000 if fixed else 1_000 * 1_250 + 500 * 10_000
    credits_usd = f"{price_nanos * AFFORDABLE // 1000 / 10**6:.6f}"
    settings = {"initial_credits_usd": credits_usd, "database_pool_size": 5, "web_threads": 450}

    def answer(exchange: Exchange) -> None:
        exchange.json(chat_answer())

    with (
        misbehaving_upstream(answer) as upstream,
        web_service(database_url, provider_settings(upstream.url, **settings)) as service,
    ):
        key = service.register()["apiKey"]
        headers = {"X-API-Key": key}

        def call(_number: int) -> int:
            if fixed:
                return service.ask("GET", "/v1/gateway/brave/web/search?q=1", headers=headers)[0]
            body = {**QUESTION, "max_tokens": 10_000}
            return service.ask("POST", CHAT, body, headers)[0]

        with ThreadPoolExecutor(CONCURRENT) as threads:
            statuses = Counter(threads.map(call, range(CONCURRENT)))
        assert set(statuses) <= {200, 402}, statuses
        balance = service.get("/v1/balance", key)
        spent_nanos = round(balance["total_spent"] * 10**9)
        assert balance["credits_usd"] >= 0
        assert round(balance["credits_usd"] * 10**9) + spent_nanos == price_nanos * AFFORDABLE
        logs = service.get("/v1/usage?limit=500", key)["logs"]
        assert len(logs) == statuses[200] == len(upstream.asked)
        if fixed:
            assert spent_nanos == price_nanos * AFFORDABLE
            assert statuses == {200: AFFORDABLE, 402: CONCURRENT - AFFORDABLE}
        else:
            # Each holds its worst case, so fewer may run concurrently; the last one holds the rest.
            assert 1 <= statuses[200] <= AFFORDABLE
        assert price_nanos * (statuses[200] - 1) < spent_nanos <= price_nanos * statuses[200]
        assert round(sum(entry["cost_usd"] for entry in logs) * 10**9) == spent_nanos


@pytest.mark.postgres
def test_one_busy_account_does_not_exhaust_the_connection_pool(postgres_url: str) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.json(chat_answer())

    with misbehaving_upstream(answer) as upstream:
        # One more than waits for the busy account's row: each process has one at a time.
        settings = provider_settings(upstream.url, database_pool_size=2)
        with (
            web_service(postgres_url, settings, workers=1) as service,
            ThreadPoolExecutor(40) as threads,
            psycopg.connect(postgres_url.replace("+psycopg", "")) as busy,
            psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as watching,
        ):
            one, other = service.register()["apiKey"], service.register()["apiKey"]

            def call(key: str) -> int:
                return service.ask("POST", CHAT, QUESTION, {"X-API-Key": key})[0]

            with busy.transaction():
                busy.execute(
                    "SELECT FROM credit_accounts WHERE id = "
                    "(SELECT account_id FROM api_keys WHERE digest = %s) FOR UPDATE",
                    [digest(one)],
                )
                calls = [threads.submit(call, one) for _ in range(40)]
                wait_until(
                    lambda: watching.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() > (0,),
                    what="a call that waits for the row",
                )
                # With forty of them waiting for the row or the pool, this one would be refused.
                assert [call(other) for _ in range(5)] == [200] * 5
            assert 200 in {done.result() for done in calls}


@pytest.mark.postgres
def test_a_stream_of_a_killed_process_is_charged_its_estimate_after_its_lease(
    postgres_url: str, build_app: Callable[..., Flask]
) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.chunk(chat_chunks("Hello")[0])
        exchange.await_hang_up()

    app = build_app(postgres_url)
    with misbehaving_upstream(endless) as upstream:
        # A lease is longer than the timeout of the upstream.
        settings = provider_settings(
            upstream.url, upstream_connect_timeout_seconds="1", upstream_read_timeout_seconds="5"
        )
        with web_service(postgres_url, settings, workers=1, threads=20) as service:
            key = service.register()["apiKey"]
            with _streaming(service.port, key) as answer:
                assert b"Hello" in answer.read1(4096)
                service.kill()
                upstream.await_hang_ups()
        headers = {"X-API-Key": key}
        with app.app_context():
            client = app.test_client()
            before = client.get("/v1/balance", headers=headers).get_json()
            assert before["total_spent"] == 0
            sweeps.sweep()
            assert client.get("/v1/balance", headers=headers).get_json() == before
            with time_machine.travel(clock.now() + timedelta(seconds=120), tick=True):
                sweeps.sweep()
            after = client.get("/v1/balance", headers=headers).get_json()
            logs = client.get("/v1/usage", headers=headers).get_json()["logs"]
        assert 0 < after["total_spent"] < 0.001
        assert [entry["cost_usd"] for entry in logs] == [after["total_spent"]]


def test_a_live_stream_outlives_the_sweeps(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    gates = iter(range(100))

    def slow(exchange: Exchange) -> None:
        exchange.start_stream()
        for frame in chat_chunks(*["word "] * 20):
            exchange.wait_for(str(next(gates)))
            exchange.chunk(frame)
        exchange.end_stream()

    with gateway_stage(build_app, each_database_url) as stage:
        stage.behave(slow)
        started = clock.now()
        stage.upstream.open("0")
        with stage.stream() as arriving:
            # Frames that arrive together are one piece.
            assert next(arriving)
            for minute in range(1, 21):
                stage.upstream.open(str(minute))
                with time_machine.travel(started + timedelta(minutes=minute), tick=True):
                    assert next(arriving)
                    if minute % 5 == 0:
                        assert usage.charge_lapsed() == 0
                        assert stage.spent_nanos() == 0
            stage.upstream.open_all()
            for gate in range(21, 40):
                stage.upstream.open(str(gate))
            assert b"[DONE]" in b"".join(arriving)
        stage.assert_nothing_held()
        assert stage.spent_nanos() == 1_000 * 1_250 + 500 * 10_000


def test_a_disconnected_client_ends_the_upstream_request(sqlite_url: str) -> None:
    # Created beforehand: on a busy machine that takes longer than the timeout of the upstream.
    frames = chat_chunks(*["word "] * 100_000)

    def chatter(exchange: Exchange) -> None:
        exchange.start_stream()
        try:
            for frame in frames:
                exchange.chunk(frame)
        finally:
            upstream.hang_ups += 1

    with (
        misbehaving_upstream(chatter) as upstream,
        web_service(sqlite_url, provider_settings(upstream.url), workers=1, threads=20) as service,
    ):
        key = service.register()["apiKey"]
        with _streaming(service.port, key) as answer:
            assert b"word" in answer.read1(4096)
        upstream.await_hang_ups()
        wait_until(lambda: service.get("/v1/usage", key)["logs"], what="the charge for what was streamed")
        balance = service.get("/v1/balance", key)
        assert 0 < balance["total_spent"] < 10


class _streaming:  # noqa: N801 - reads as the deed that it is
    """A streaming chat on its own connection, which is reset at the end of the block."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        self._key = key

    def __enter__(self) -> http.client.HTTPResponse:
        body = json.dumps({**QUESTION, "stream": True})
        self._connection.request("POST", CHAT, body, {"X-API-Key": self._key, "Content-Type": "application/json"})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        return self._answer

    def __exit__(self, *_error: object) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._answer.close()
        self._connection.close()


@ON_EACH_DATABASE
def test_of_concurrent_calls_of_keys_with_budgets_none_spends_more(database_url: str, *, fixed: bool) -> None:
    price_nanos = 5_000_000 if fixed else 1_000 * 1_250 + 500 * 10_000
    budgets = [price_nanos * calls for calls in (3, 5, 7)]
    settings = {"database_pool_size": 5, "web_threads": 450}

    def answer(exchange: Exchange) -> None:
        exchange.json(chat_answer())

    with (
        misbehaving_upstream(answer) as upstream,
        web_service(database_url, provider_settings(upstream.url, **settings)) as service,
    ):
        agent = {"X-API-Key": service.register()["apiKey"]}
        made = [service.ask("POST", "/v1/keys", {"limit_usd": nanos / 10**9}, agent)[2] for nanos in budgets]
        keys = [json.loads(each)["api_key"] for each in made]

        def call(number: int) -> int:
            headers = {"X-API-Key": keys[number % len(keys)]}
            if fixed:
                return service.ask("GET", "/v1/gateway/brave/web/search?q=1", headers=headers)[0]
            return service.ask("POST", CHAT, {**QUESTION, "max_tokens": 500}, headers)[0]

        with ThreadPoolExecutor(CONCURRENT) as threads:
            statuses = Counter(threads.map(call, range(CONCURRENT)))
        assert set(statuses) <= {200, 402}, statuses
        shown = service.get("/v1/keys", agent["X-API-Key"])["keys"]
        used = [round(each["used_usd"] * 10**9) for each in shown]
        assert all(0 < nanos <= budget for nanos, budget in zip(used, budgets, strict=True)), (used, budgets)
        assert used == budgets or not fixed
        assert sum(used) == round(service.get("/v1/balance", agent["X-API-Key"])["total_spent"] * 10**9)
        logs = service.get("/v1/usage?limit=500", agent["X-API-Key"])["logs"]
        assert len(logs) == statuses[200] == len(upstream.asked)
