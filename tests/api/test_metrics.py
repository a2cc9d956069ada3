"""`/metrics`: no door for strangers, no id or key in a label; the figures are the service's and not one process's."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from app import wiring
from app.adapters.evm.chain import EvmChain
from app.core import alarms, clock, heartbeats, tallies
from app.core.chains import ChainName
from app.core.heartbeats import Heart
from app.jobs import JobName
from app.payments import treasury, upkeep
from app.status import handover
from app.web.callers import Why, count_let_go
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.applications import KeptTallies, make_app, settings_for
from tests.support.chains import evm_chain
from tests.support.fake_shopper import FakeShopper
from tests.support.gateway import CHAT, QUESTION, provider_settings
from tests.support.loopback_http import unused_url
from tests.support.payments import till_of
from tests.support.servers import free_port, redis_server
from tests.support.upstreams import Exchange, chat_answer, misbehaving_upstream
from tests.support.waiting import wait_until
from workers.context import job

TOKEN = "m" * 32
ROOT = Path(__file__).resolve().parents[2]
ORDER: dict[str, Any] = {
    "url": "https://shop.example/p/1", "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"}, "max_total_usd": 30,
}  # fmt: skip


@pytest.fixture
def sums() -> KeptTallies:
    tallies.take()
    return KeptTallies()


@pytest.fixture
def counted(each_database_url: str, build_app: Callable[..., Flask], sums: KeptTallies) -> Flask:
    return build_app(each_database_url, tallies=sums)


def read(client: FlaskClient, **headers: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.get_data(as_text=True))
        for sample in family.samples
    }


def test_a_stranger_is_not_let_in_without_a_token_and_a_proxy_on_this_machine_is_a_stranger(
    app: Flask,
) -> None:
    client = app.test_client()
    assert client.get("/metrics").status_code == 200
    assert client.get("/metrics", environ_overrides={"REMOTE_ADDR": "192.0.2.1"}).status_code == 404
    for name in ("X-Forwarded-For", "Forwarded"):
        assert client.get("/metrics", headers={name: "127.0.0.1"}).status_code == 404


def test_with_a_token_only_who_shows_it_is_let_in(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    client = build_app(sqlite_url, settings={"metrics_token": TOKEN}).test_client()
    for shown in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ü"):
        assert client.get("/metrics", headers={"Authorization": shown}).status_code == 401
    away = {"REMOTE_ADDR": "192.0.2.1"}
    shown = {"Authorization": f"bearer {TOKEN}"}
    assert client.get("/metrics", headers=shown, environ_overrides=away).status_code == 200


def test_callers_who_were_let_go_are_counted_by_reason(counted: Flask) -> None:
    client = counted.test_client()
    for why in (Why.CROWD, Why.RESTED, Why.CROWD):
        count_let_go(why)
    told = read(client)
    assert told["purser_callers_let_go_total", (("why", "too_many_wait"),)] == 2
    assert told["purser_callers_let_go_total", (("why", "rested"),)] == 1


def test_requests_are_counted_by_pattern_and_no_id_or_key_is_a_label(counted: Flask) -> None:
    client = counted.test_client()
    agent = register(client)
    wallet = agent.get("/v1/wallets").get_json()["wallets"][0]["id"]
    for _ in range(3):
        agent.get(f"/v1/wallets/{wallet}")
    client.open("/v1/nowhere", method="MADEUP")
    found = read(client)
    labels = (("method", "GET"), ("route", "/v1/wallets/<string:wallet_id>"), ("status", "200"))
    assert found[("purser_requests_total", labels)] == 3
    assert found[("purser_request_seconds_count", labels[:2])] == 3
    text = client.get("/metrics").get_data(as_text=True)
    for secret in (wallet, agent.key, "MADEUP", "nowhere"):
        assert secret not in text


def test_statuses_that_a_service_makes_up_are_no_series_of_their_own(counted: Flask) -> None:
    counted.add_url_rule("/forwarded/<int:status>", view_func=lambda status: ("", status))
    client = counted.test_client()
    for made_up in (299, 298, 777, 418, 204):
        client.get(f"/forwarded/{made_up}")
    found = read(client)
    seen = {
        dict(labels)["status"]: n for (name, labels), n in found.items() if name == "purser_requests_total"
    }
    assert seen == {"2xx": 2, "7xx": 1, "418": 1, "204": 1}


def test_what_several_processes_counted_is_one_figure_and_what_nobody_took_is_not_lost(
    sums: KeptTallies,
) -> None:
    sums.away = True
    tallies.count("requests", 2, route="/a")
    handover.hand_over(sums)
    assert not sums.sums
    sums.away = False
    tallies.count("requests", route="/a")
    handover.hand_over(sums)
    handover.hand_over(sums)
    assert sums.sums == {"requests\troute=/a": 3}


@pytest.mark.usefixtures("sums")
def test_buckets_add_up_and_the_sum_is_in_seconds(counted: Flask) -> None:
    for microseconds in (4_999, 5_000, 5_001, 90_000_000):
        tallies.observe("rpc_seconds", microseconds, chain="base", endpoint="1")
    found = read(counted.test_client())

    def at(bound: str) -> float:
        return found[("purser_rpc_seconds_bucket", (("chain", "base"), ("endpoint", "1"), ("le", bound)))]

    assert (at("0.005"), at("0.01"), at("60"), at("+Inf")) == (2, 3, 3, 4)
    assert found[("purser_rpc_seconds_sum", (("chain", "base"), ("endpoint", "1")))] == pytest.approx(90.015)


def test_more_series_than_are_kept_do_not_fill_the_memory() -> None:
    tallies.take()
    for number in range(11_000):
        tallies.count("requests", route=str(number))
    assert len(tallies.take()) == 10_000


def test_credits_are_told_to_the_cent_and_nothing_is_zero_that_could_not_be_read(
    counted: Flask, sums: KeptTallies
) -> None:
    client = counted.test_client()
    for _ in range(3):
        register(client)
    assert read(client)[("purser_credits_usd", (("bucket", "available"),))] == 30
    sums.away = True
    found = read(client)
    assert found[("purser_redis_up", ())] == 0
    assert not [name for name, _ in found if name.startswith("purser_requests")]


@pytest.mark.chain
def test_a_scrape_asks_no_chain_so_that_none_can_keep_it_waiting(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    chain = evm_chain(base_node)
    app = build_app(sqlite_url, chains={ChainName.BASE: chain}, tills={ChainName.BASE: till_of(chain)})
    with app.app_context():
        upkeep.look_after()
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        gone = EvmChain(
            ChainName.BASE, base_node.deployment, rpc_urls=[url], deposit_confirmations=1, read_seconds=100
        )
        after = build_app(sqlite_url, chains={ChainName.BASE: gone}, tills={ChainName.BASE: till_of(gone)})
        client = after.test_client()
        found = read(client)
    assert found[("purser_settlements_left", (("chain", "base"),))] == 0
    assert found[("purser_settlements_left_age_seconds", (("chain", "base"),))] < 60


@pytest.fixture
def told() -> Iterator[tuple[str, list[bytes]]]:
    """A Sentry: a real server that keeps what it was told."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(gzip.decompress(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://public@127.0.0.1:{server.server_address[1]}/1", bodies
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_defect_is_told_without_a_word_of_the_request(
    build_app: Callable[..., Flask], sqlite_url: str, told: tuple[str, list[bytes]]
) -> None:
    address, bodies = told
    app = build_app(sqlite_url, settings={"sentry_dsn": address})

    def fail(_code: str) -> str:
        secret = "canary-of-a-variable"
        raise ZeroDivisionError(f"canary-of-a-message {secret}")

    app.add_url_rule("/broken/<_code>", view_func=fail)
    app.testing = False
    app.config["PROPAGATE_EXCEPTIONS"] = False
    answer = app.test_client().get(
        "/broken/canary-of-a-path?q=canary-of-a-query", headers={"X-API-Key": "canary-of-a-key"}
    )
    assert answer.status_code == 500
    sentry_sdk.flush(5)
    wait_until(lambda: bool(bodies), what="the defect to be told")
    text = b"".join(bodies).decode(errors="replace")
    event = json.loads(text.splitlines()[2])
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert event["tags"]["route"] == "/broken/<_code>"
    assert event["tags"]["request_id"] == answer.get_json()["request_id"]
    # The line of code that fails is shown; what it had in its hands is not.
    assert not [word for word in ("path", "query", "key", "message canary") if f"canary-of-a-{word}" in text]


def test_a_defect_of_a_page_for_people_is_told_too(
    build_app: Callable[..., Flask], sqlite_url: str, told: tuple[str, list[bytes]]
) -> None:
    address, bodies = told
    app = build_app(sqlite_url, settings={"sentry_dsn": address})

    def fail() -> str:
        raise ZeroDivisionError

    # By its endpoint's name it is a page of that door, which answers for its failures.
    app.add_url_rule("/device/broken", endpoint="owner_entrance.broken", view_func=fail)
    answer = app.test_client().get("/device/broken")
    assert (answer.status_code, answer.mimetype) == (500, "text/html")
    sentry_sdk.flush(5)
    assert b"/device/broken" in b"".join(bodies)


def test_a_defect_of_a_job_has_left_before_the_job_ends_its_process(
    build_app: Callable[..., Flask], sqlite_url: str, told: tuple[str, list[bytes]]
) -> None:
    address, bodies = told
    app = build_app(sqlite_url, settings={"sentry_dsn": address})

    @job
    def fail() -> None:
        raise ZeroDivisionError

    with app.app_context(), pytest.raises(ZeroDivisionError):
        fail()
    # A work-horse is gone by here, with all its threads.
    assert b"ZeroDivisionError" in b"".join(bodies)


def test_without_an_address_nothing_is_told() -> None:
    alarms.begin("", network="sandbox")
    alarms.report(ZeroDivisionError("nobody hears"))
    assert not sentry_sdk.get_client().is_active()


def emitted(client: FlaskClient) -> set[str]:
    count_let_go(Why.RESTED)  # by the server, of which this client has none
    text = client.get("/metrics").get_data(as_text=True)
    return {family.name for family in text_string_to_metric_families(text)}


def wired(build_app: Callable[..., Flask], database_url: str, settings: dict[str, Any]) -> Flask:
    """Make an application on the parts of a service in use, but for a browser."""
    ports = wiring.build(settings_for(database_url, **settings))
    parts = {port.name: getattr(ports, port.name) for port in fields(ports)}
    return build_app(database_url, settings=settings, **{**parts, "shopper": FakeShopper()})


def documented() -> set[str]:
    told = re.findall(r"`(purser_[a-z_]+)", (ROOT / "docs" / "operations.md").read_text())
    return {name.removesuffix("_total") for name in told}


def value(found: Mapping[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str) -> float:
    return found[f"purser_{name}", tuple(sorted(labels.items()))]


@pytest.mark.chain
@pytest.mark.redis
def test_every_figure_is_that_of_the_real_part_that_it_is_about_and_every_one_is_documented(
    each_database_url: str, build_app: Callable[..., Flask], base_node: EvmNode
) -> None:
    tallies.take()
    with redis_server(port=free_port()) as redis_url, misbehaving_upstream() as upstream:
        settings = provider_settings(
            upstream.url, redis_url=redis_url, base_rpc_url=f"{unused_url()},{base_node.url}",
            ethereum_rpc_url=unused_url(), solana_rpc_url=unused_url(),
        )  # fmt: skip
        app = wired(build_app, each_database_url, settings)
        client = app.test_client()
        agent = register(client)
        client.get("/v1/health", headers={"X-Forwarded-For": "192.0.2.1"})
        # One dead endpoint before a good one, one request that waits, one purchase, one job, gas for payments.
        asked = agent.post(f"{agent.wallet_url}/fund", {"chain": "base", "amount": "1", "currency": "USDC"})
        assert asked.status_code == 200, asked.text
        with app.app_context():
            heartbeats.beat()
            heartbeats.beat(Heart.SHOPPER)
            base_node.fund_eth(treasury.settler(ChainName.BASE), 10**16)
            upkeep.look_after()
            assert agent.post("/v1/gateway/shopping/buy", ORDER).status_code == 202
            assert app.extensions["ports"].queue.put(JobName.CONFIRM, "base")

        def slowly(exchange: Exchange) -> None:
            exchange.is_over(0.3)
            exchange.wait_for("looked")
            exchange.json(chat_answer())

        upstream.behave = slowly
        calling = threading.Thread(
            target=replace(agent, client=app.test_client()).post, args=[CHAT, QUESTION]
        )
        calling.start()
        upstream.await_asked()
        before = read(client)
        upstream.open("looked")
        calling.join()
        with time_machine.travel(clock.now().timestamp() + 700, tick=True):
            found = read(client)
        names = emitted(client)

    failures = {labels: n for (name, labels), n in found.items() if name == "purser_rpc_failures_total"}
    assert (
        sum(n for labels, n in failures.items() if {("chain", "base"), ("endpoint", "1")} <= set(labels)) >= 1
    )
    assert not [labels for labels in failures if {("chain", "base"), ("endpoint", "2")} <= set(labels)]
    assert value(found, "rpc_seconds_count", chain="base", endpoint="2") >= 1
    timed = {"upstream": "127.0.0.1", "outcome": "2xx"}
    assert value(found, "upstream_seconds_count", **timed) == 1
    assert value(found, "upstream_seconds_bucket", le="0.25", **timed) == 0
    assert value(found, "upstream_seconds_sum", **timed) >= 0.3
    # The worst case while nobody knew, then what it was; and what a purchase costs.
    assert value(before, "credits_usd", bucket="held") > 0.01
    assert value(found, "credits_usd", bucket="held") == 0
    spent = value(found, "credits_usd", bucket="spent")
    assert 0.25 < spent < 0.26 < value(found, "credits_usd", bucket="available")
    jobs = {dict(labels)["queue"]: n for (name, labels), n in found.items() if name == "purser_queue_jobs"}
    assert jobs[JobName.CONFIRM.queue.value] == 1
    assert value(found, "open_purchases", status="queued") == 1
    assert value(found, "pending_transactions", type="funding", chain="base", older_than="600") == 1
    for age in (
        value(found, "pending_oldest_seconds", type="funding", chain="base"),
        value(found, "heartbeat_age_seconds", process="worker"),
        value(found, "settlements_left_age_seconds", chain="base"),
    ):
        assert 700 <= age < 1400
    assert value(found, "settlements_left", chain="base") > 0
    assert value(found, "database_up") == value(found, "redis_up") == 1
    assert names == documented()


def test_a_database_that_is_away_is_told_as_such_and_nothing_of_it_as_zero() -> None:
    found = read(make_app(settings_for("postgresql://purser@127.0.0.1:1/purser")).test_client())
    assert value(found, "database_up") == 0
    assert not [name for name, _ in found if name.startswith(("purser_credits", "purser_pending"))]


def test_what_is_pending_is_told_by_age(chain_app: Flask) -> None:
    client = chain_app.test_client()
    agent = register(client)
    wallet = agent.get("/v1/wallets").get_json()["wallets"][0]["id"]
    asked = agent.post(f"/v1/wallets/{wallet}/fund", {"chain": "base", "amount": "1", "currency": "USDC"})
    assert asked.status_code < 300
    labels = (("chain", "base"), ("older_than", "0"), ("type", "funding"))
    assert read(client)[("purser_pending_transactions", labels)] == 1
