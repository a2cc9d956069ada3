"""`/metrics`: access control, no id or key in a label, and figures of the whole service."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from redis import Redis
from rq.exceptions import NoSuchJobError

from app import wiring
from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ChainName
from app.db import leases
from app.db.leases import ProcessKind
from app.extensions import db
from app.jobs import JobName
from app.observability import counters
from app.payments import jobs as payment_jobs
from app.payments import treasury
from app.state import Application
from sandbox.evm import EvmNode
from server.hooks import ShedReason
from tests.support import deployed
from tests.support.agents import register
from tests.support.applications import InMemoryCounterStore, make_app, settings_for
from tests.support.chains import evm_chain
from tests.support.fake_shopper import FakeShopper
from tests.support.gateway import CHAT, QUESTION, provider_settings
from tests.support.ledger import change_balances_by
from tests.support.loopback_http import unused_url
from tests.support.payments import facilitator_of
from tests.support.servers import free_port, redis_server
from tests.support.upstreams import Exchange, chat_answer, misbehaving_upstream
from workers import sweeps
from workers.listed_jobs import AllowlistedJob

TOKEN = "m" * 32
ROOT = Path(__file__).resolve().parents[2]
ORDER: dict[str, Any] = {
    "url": "https://shop.example/p/1", "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"}, "max_total_usd": 30,
}  # fmt: skip


@pytest.fixture
def store() -> InMemoryCounterStore:
    counters.flush(InMemoryCounterStore())
    return InMemoryCounterStore()


@pytest.fixture
def counted(each_database_url: str, build_app: Callable[..., Flask], store: InMemoryCounterStore) -> Flask:
    return build_app(each_database_url, counters=store)


def read(client: FlaskClient, **headers: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.get_data(as_text=True))
        for sample in family.samples
    }


def test_without_a_token_metrics_are_for_loopback_only_and_not_for_a_local_proxy(app: Flask) -> None:
    client = app.test_client()
    assert client.get("/metrics").status_code == 200
    assert client.get("/metrics", environ_overrides={"REMOTE_ADDR": "192.0.2.1"}).status_code == 404
    for name in ("X-Forwarded-For", "Forwarded"):
        assert client.get("/metrics", headers={name: "127.0.0.1"}).status_code == 404


def test_with_a_token_metrics_require_it(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    client = build_app(sqlite_url, settings={"metrics_token": TOKEN}).test_client()
    for presented in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ü"):
        assert client.get("/metrics", headers={"Authorization": presented}).status_code == 401
    remote = {"REMOTE_ADDR": "192.0.2.1"}
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert client.get("/metrics", headers=headers, environ_overrides=remote).status_code == 200


def test_shed_connections_are_counted_by_reason(counted: Flask) -> None:
    client = counted.test_client()
    assert isinstance(counted, Application)
    for reason in (ShedReason.TOO_MANY_WAITING, ShedReason.IDLE, ShedReason.TOO_MANY_WAITING):
        counted.server_hooks.count_shed(reason)
    found = read(client)
    assert found["purser_connections_shed_total", (("reason", "too_many_waiting"),)] == 2
    assert found["purser_connections_shed_total", (("reason", "idle"),)] == 1


def test_requests_are_counted_by_route_pattern_without_ids_or_keys(counted: Flask) -> None:
    client = counted.test_client()
    agent = register(client)
    wallet = agent.get("/v1/wallets").get_json()["wallets"][0]["id"]
    for _ in range(3):
        agent.get(f"/v1/wallets/{wallet}")
    client.open("/v1/nowhere", method="MADEUP")
    found = read(client)
    route = (("method", "GET"), ("route", "/v1/wallets/<string:wallet_id>"))
    assert found[("purser_requests_total", (("code", ""), *route, ("status", "200")))] == 3
    assert found[("purser_request_seconds_count", route)] == 3
    missing = (("code", "NOT_FOUND"), ("method", ""), ("route", ""), ("status", "404"))
    assert found[("purser_requests_total", missing)] == 1
    text = client.get("/metrics").get_data(as_text=True)
    for secret in (wallet, agent.key, "MADEUP", "nowhere"):
        assert secret not in text


def test_unassigned_statuses_of_a_service_create_no_series(
    each_database_url: str, build_app: Callable[..., Flask], store: InMemoryCounterStore
) -> None:
    counted = build_app(each_database_url, counters=store, reused=False)
    counted.add_url_rule("/forwarded/<int:status>", view_func=lambda status: ("", status))
    client = counted.test_client()
    for status in (299, 298, 777, 418, 204):
        client.get(f"/forwarded/{status}")
    found = read(client)
    by_status = {dict(labels)["status"]: n for (name, labels), n in found.items() if name == "purser_requests_total"}
    assert by_status == {"2xx": 2, "7xx": 1, "418": 1, "204": 1}


def test_counts_of_several_processes_are_added_and_never_lost(store: InMemoryCounterStore) -> None:
    store.away = True
    counters.REQUESTS.labels("GET", "/a", "200", "").inc(2)
    counters.flush(store)
    assert not store.sums
    store.away = False
    counters.REQUESTS.labels("GET", "/a", "200", "").inc()
    counters.flush(store)
    counters.flush(store)
    labels = {"method": "GET", "route": "/a", "status": "200", "code": ""}
    assert counters.totals(store) == [Sample("purser_requests_total", labels, 3)]


@pytest.mark.usefixtures("store")
def test_buckets_add_up_and_the_sum_is_in_seconds(counted: Flask) -> None:
    for seconds in (0.004_999, 0.005, 0.005_001, 90):
        counters.RPC_SECONDS.labels("base", "1").observe(seconds)
    found = read(counted.test_client())

    def at(bound: str) -> float:
        return found[("purser_rpc_seconds_bucket", (("chain", "base"), ("endpoint", "1"), ("le", bound)))]

    assert (at("0.005"), at("0.01"), at("60"), at("+Inf")) == (2, 3, 3, 4)
    assert found[("purser_rpc_seconds_sum", (("chain", "base"), ("endpoint", "1")))] == pytest.approx(90.015)


def test_the_number_of_series_is_bounded(store: InMemoryCounterStore) -> None:
    for number in range(10_001):
        counters.REQUESTS.labels("GET", str(number), "200", "").inc()
    counters.flush(store)
    assert len(store.sums) == 10_001
    # They are stored, and only then forgotten.
    assert not [sample for metric in counters.collect() for sample in metric.samples if sample.labels.keys() - {"le"}]
    counters.REQUESTS.labels("GET", "0", "200", "").inc()
    counters.flush(store)
    assert sum(sample.value for sample in counters.totals(store) or ()) == 10_002


def test_a_fork_counts_from_zero_and_needs_no_lock_of_its_parent(store: InMemoryCounterStore) -> None:
    counters.REQUESTS.labels("GET", "/parent", "200", "").inc()
    with counters._lock, counters.REQUESTS._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            counters.REQUESTS.labels("GET", "/child", "200", "").inc()
            counters.flush(store)
            routes = {sample.labels.get("route") for sample in counters.totals(store) or () if sample.value}
            os._exit(routes != {"/child"})
    assert os.waitpid(child, 0)[1] == 0


def test_no_bucket_is_missing_in_a_store_that_was_emptied(counted: Flask, store: InMemoryCounterStore) -> None:
    counters.RPC_SECONDS.labels("base", "1").observe(1)
    counters.flush(store)
    store.sums.clear()
    counters.RPC_SECONDS.labels("base", "1").observe(1)
    found = read(counted.test_client())
    bounds = ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "+Inf"]
    buckets = {le: value(found, "rpc_seconds_bucket", chain="base", endpoint="1", le=le) for le in bounds}
    assert buckets == {le: float(le in bounds[7:]) for le in bounds}
    names = [labels for name, labels in found if name == "purser_rpc_seconds_bucket"]
    assert [dict(labels)["le"] for labels in names] == bounds


def test_credits_are_exact_and_unreadable_figures_are_absent(counted: Flask, store: InMemoryCounterStore) -> None:
    client = counted.test_client()
    for _ in range(3):
        register(client)
    assert read(client)[("purser_credits_usd", (("bucket", "available"),))] == 30
    store.away = True
    found = read(client)
    assert found[("purser_redis_up", ())] == 0
    assert not [name for name, _ in found if name.startswith("purser_requests")]


@pytest.mark.chain
def test_a_scrape_makes_no_call_to_a_chain(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    chain = evm_chain(base_node)
    app = build_app(sqlite_url, chains={ChainName.BASE: chain}, facilitators={ChainName.BASE: facilitator_of(chain)})
    with app.app_context():
        payment_jobs.check_gas_reserves()
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        silent_chain = EvmChain(
            ChainName.BASE, base_node.deployment, rpc_urls=[url], deposit_confirmations=1, read_seconds=100
        )
        after = build_app(
            sqlite_url,
            chains={ChainName.BASE: silent_chain},
            facilitators={ChainName.BASE: facilitator_of(silent_chain)},
        )
        client = after.test_client()
        found = read(client)
    assert found[("purser_settlement_capacity", (("chain", "base"),))] == 0
    assert found[("purser_settlement_capacity_age_seconds", (("chain", "base"),))] < 60


def emitted(client: FlaskClient) -> dict[str, set[str]]:
    """Return the labels of every metric."""
    counters.CONNECTIONS_SHED.labels("idle").inc()  # the test client has no server to count it
    counters.KEY_SECONDS.labels("k3", "decrypt", "ok").observe(0)  # the keys of its wallets are local
    counters.LOCKOUTS.inc()
    counters.UNPAID_USD.inc()
    assert isinstance(client.application, Application)
    with client.application.app_context():
        client.application.server_hooks.measure(db.engine)
    text = client.get("/metrics").get_data(as_text=True)
    return {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in text_string_to_metric_families(text)
    }


def reject_a_job(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.hset("rq:job:another", mapping={"data": "not a job"})
        with pytest.raises(NoSuchJobError):
            AllowlistedJob.fetch("another", connection=redis)


def wired(build_app: Callable[..., Flask], database_url: str, settings: dict[str, Any]) -> Flask:
    """Make an application with the adapters of a real service, except for a browser."""
    ports = wiring.build(settings_for(database_url, **settings))
    parts = {port.name: getattr(ports, port.name) for port in fields(ports)}
    reject_a_job(settings["redis_url"])
    return build_app(database_url, settings=settings, **{**parts, "shopper": FakeShopper()})


def documented() -> dict[str, set[str]]:
    text = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    listed = re.findall(r"`(purser_[a-z_]+?)(?:_total)?(?:{([^}]*)})?`", text)
    return {name: set(re.findall(r"[a-z_]+(?![a-z_\"])", labels)) for name, labels in listed}


def test_alerts_and_dashboards_name_documented_metrics_and_labels() -> None:
    known, shown = documented(), set()
    for query, text in deployed.queries():
        names = re.findall(r"purser_[a-z_]+", query)
        assert names, query
        used = re.findall(r"([a-z_]+)(?==|!=|=~)", "".join(re.findall(r"{(.*?)}", query)))
        used += re.findall(r"[a-z]+", ",".join(re.findall(r"by \((.*?)\)", query)))
        used += re.findall(r"{{ ?([a-z]+) ?}}", text)
        for name in names:
            metric = re.sub(r"_(total|count|sum|bucket)$", "", name)
            assert set(used) <= known[metric] | ({"le"} if name.endswith("_bucket") else set()), query
            shown.add(metric)
    assert shown == known.keys()


def value(found: Mapping[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str) -> float:
    return found[f"purser_{name}", tuple(sorted(labels.items()))]


def cause_audit_violation() -> None:
    change_balances_by(1)
    assert sweeps.audit()
    change_balances_by(-1)


@pytest.mark.chain
@pytest.mark.redis
def test_every_metric_is_measured_and_documented(
    each_database_url: str, build_app: Callable[..., Flask], base_node: EvmNode
) -> None:
    counters.flush(InMemoryCounterStore())
    with redis_server(port=free_port()) as redis_url, misbehaving_upstream() as upstream:
        settings = provider_settings(
            upstream.url, redis_url=redis_url, base_rpc_url=f"{unused_url()},{base_node.url}",
            ethereum_rpc_url=unused_url(), solana_rpc_url=unused_url(),
        )  # fmt: skip
        app = wired(build_app, each_database_url, settings)
        client = app.test_client()
        agent = register(client)
        client.get("/v1/health", headers={"X-Forwarded-For": "192.0.2.1"})
        # One dead endpoint before a good one, one funding request, one purchase, one job, gas for payments.
        asked = agent.post(f"{agent.wallet_url}/fund", {"chain": "base", "amount": "1", "currency": "USDC"})
        assert asked.status_code == 200, asked.text
        with app.app_context():
            leases.record()
            leases.record(ProcessKind.SHOPPER)
            base_node.fund_eth(treasury.settler(ChainName.BASE), 10**16)
            payment_jobs.check_gas_reserves()
            assert agent.post("/v1/gateway/shopping/buy", ORDER).status_code == 202
            assert app.state.ports.queue.enqueue(JobName.CONFIRM, "base")
            cause_audit_violation()

        def slowly(exchange: Exchange) -> None:
            exchange.is_over(0.3)
            exchange.wait_for("scraped")
            exchange.json(chat_answer())

        upstream.behave = slowly
        calling = threading.Thread(target=replace(agent, client=app.test_client()).post, args=[CHAT, QUESTION])
        calling.start()
        upstream.await_asked()
        before = read(client)
        upstream.open("scraped")
        calling.join()
        with time_machine.travel(clock.now().timestamp() + 700, tick=True):
            found = read(client)
        labels_by_name = emitted(client)

    failures = {labels: n for (name, labels), n in found.items() if name == "purser_rpc_failures_total"}
    assert sum(n for labels, n in failures.items() if {("chain", "base"), ("endpoint", "1")} <= set(labels)) >= 1
    assert not [labels for labels in failures if {("chain", "base"), ("endpoint", "2")} <= set(labels)]
    assert value(found, "rpc_seconds_count", chain="base", endpoint="2") >= 1
    timed = {"upstream": "127.0.0.1", "outcome": "2xx"}
    assert value(found, "upstream_seconds_count", **timed) == 1
    assert value(found, "upstream_seconds_bucket", le="0.25", **timed) == 0
    assert value(found, "upstream_seconds_sum", **timed) >= 0.3
    # The hold while the cost was unknown, then the cost; and the price of a purchase.
    assert value(before, "credits_usd", bucket="held") > 0.01
    assert value(found, "credits_usd", bucket="held") == 0 < value(found, "revenue_usd_total", provider="openai") < 0.01
    assert 0.25 < value(found, "credits_usd", bucket="spent") < 0.26 < value(found, "credits_usd", bucket="available")
    jobs = {dict(labels)["queue"]: n for (name, labels), n in found.items() if name == "purser_queue_jobs"}
    assert jobs[JobName.CONFIRM.queue.value] == 1
    assert value(found, "open_purchases", status="queued") == 1
    assert value(found, "pending_transactions", type="funding", chain="base", older_than="600") == 1
    for age in (
        value(found, "pending_oldest_seconds", type="funding", chain="base"),
        value(found, "heartbeat_age_seconds", process="worker"),
        value(found, "settlement_capacity_age_seconds", chain="base"),
    ):
        assert 700 <= age < 1400
    assert value(found, "settlement_capacity", chain="base") > 0
    assert value(found, "database_up") == value(found, "redis_up") == 1 > value(found, "deliveries_due")
    assert labels_by_name == documented()


def test_an_unreachable_database_is_reported_and_its_figures_are_absent() -> None:
    found = read(make_app(settings_for("postgresql://purser@127.0.0.1:1/purser")).test_client())
    assert value(found, "database_up") == 0
    assert not [name for name, _ in found if name.startswith(("purser_credits", "purser_pending"))]


def test_pending_transactions_are_reported_by_age(chain_app: Flask) -> None:
    client = chain_app.test_client()
    agent = register(client)
    wallet = agent.get("/v1/wallets").get_json()["wallets"][0]["id"]
    wanted = {"chain": "base", "amount": "1", "currency": "USDC"}
    assert agent.post(f"/v1/wallets/{wallet}/fund", wanted).status_code == 200
    with time_machine.travel(clock.now() + timedelta(seconds=700), tick=True):
        assert agent.post(f"/v1/wallets/{wallet}/fund", wanted).status_code == 200
        found = read(client)
    counted = {
        age: value(found, "pending_transactions", type="funding", chain="base", older_than=age)
        for age in ("0", "60", "600", "3600")
    }
    # An alert that names the age finds how many are as old.
    assert counted == {"0": 2, "60": 1, "600": 1, "3600": 0}
