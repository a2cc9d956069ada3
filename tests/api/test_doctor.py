"""`flask doctor` finds each problem and its fix, shows no secret, changes nothing and raises no false alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

import pytest
import time_machine
from alembic.migration import MigrationContext
from click.testing import Result
from flask import Flask
from sqlalchemy import select, text, update

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.adapters.prices import MarketPriceFeed
from app.core import clock
from app.core.chains import ChainName, Token
from app.db import leases
from app.db.leases import ProcessKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.observability import counters
from app.payments import treasury
from app.wallets.core.models import KeyStore
from tests.support import status_writes
from tests.support.agents import register
from tests.support.applications import InMemoryCounterStore, RecordingQueue, key_of, make_app, settings_for
from tests.support.chains import fund
from tests.support.evm import EvmNode
from tests.support.fake_shopper import FakeShopper
from tests.support.loopback_http import unused_url
from tests.support.payments import facilitator_of
from tests.support.solana import running_solana, solana_chain


def doctor(app: Flask) -> Result:
    return app.test_cli_runner().invoke(args=["doctor"])


def chain_at(*urls: str, network: str = "sandbox") -> dict[ChainName, EvmChain]:
    deployment = DEPLOYMENTS[network, "base"]
    return {ChainName.BASE: EvmChain(ChainName.BASE, deployment, rpc_urls=urls, deposit_confirmations=1)}


def test_a_healthy_service_has_no_findings_and_nothing_is_changed(
    each_database_url: str, build_app: Callable[..., Flask], base_node: EvmNode
) -> None:
    app = build_app(each_database_url, chains=chain_at(base_node.url))
    with app.app_context():
        leases.record()
    register(app.test_client())
    result = doctor(app)
    assert "FAIL" not in result.output, result.output
    assert "responds, at block" in result.output
    assert result.exit_code == 0
    with app.app_context(), read_only_unit() as session:
        # Checks must not bind a database to a network, as signing does.
        assert session.scalar(select(KeyStore.network)) == "sandbox"


@pytest.mark.chain
def test_a_chain_without_nonces_raises_no_alarm_after_a_transfer_on_another(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    with running_solana(slot_ms=20) as solana_node:
        solana = solana_chain(solana_node)
        app = build_app(sqlite_url, chains={**chain_at(base_node.url), ChainName.SOLANA: solana})
        agent = register(app.test_client())
        fund(base_node, agent.address)
        assert agent.move("0.001", "ETH").status_code == HTTPStatus.OK
        result = doctor(app)
    assert "ok    solana: endpoint 1 (" in result.output
    assert "FAIL  solana" not in result.output, result.output


def test_a_broken_endpoint_is_named_by_position_host_and_cause_never_by_its_path(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode, ethereum_node: EvmNode
) -> None:
    dead = unused_url()
    hosts = [url.rpartition("/")[2] for url in (dead, ethereum_node.url, base_node.url)]
    urls = [f"http://user:canary-password@{host}/?key=canary" for host in hosts]
    result = doctor(build_app(sqlite_url, chains=chain_at(*urls)))
    expected = f"base: endpoint 1 ({hosts[0]}) gives no usable response: it cannot be connected to (Connection refused)"
    assert f"warn  {expected}" in result.output
    assert f"FAIL  base: endpoint 2 ({hosts[1]}) serves a chain that is not base" in result.output
    assert f"ok    base: endpoint 3 ({hosts[2]}) responds" in result.output
    assert "entry 2 of BASE_RPC_URL" in result.output
    assert result.exit_code == 1
    assert "canary" not in result.output


def test_missing_contracts_are_found(build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode) -> None:
    (chain,) = chain_at(base_node.url).values()
    assert chain.diagnose().missing_contracts == ()
    elsewhere = EvmChain(
        ChainName.BASE,
        replace(chain.deployment, usdc="0x" + "12" * 20),
        rpc_urls=[base_node.url],
        deposit_confirmations=1,
    )
    result = doctor(build_app(sqlite_url, chains={ChainName.BASE: elsewhere}))
    assert "there is no contract at the address of usdc" in result.output
    assert result.exit_code == 1


def test_a_database_of_an_older_release_is_found(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url)
    with app.app_context(), unit_of_work() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
        assert MigrationContext.configure(session.connection()).get_current_heads() == ("0001",)
    result = doctor(app)
    assert "its schema is at 0001" in result.output
    assert "flask --app wsgi db upgrade" in result.output
    assert result.exit_code == 1


def test_an_unreachable_database_is_reported_without_its_password() -> None:
    app = make_app(settings_for("postgresql://purser:canary-password@127.0.0.1:1/purser"))
    result = doctor(app)
    assert "FAIL  database: does not respond (connection" in result.output
    assert "127.0.0.1" in result.output
    assert "canary" not in result.output


def test_undecryptable_wallet_keys_are_found(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    register(build_app(sqlite_url).test_client())
    status_writes.expect_unverifiable_rows()
    restored = build_app(sqlite_url, settings={"encryption_keys": key_of("another")})
    result = doctor(restored)
    assert "1 of the oldest and newest" in result.output or "2 of the oldest and newest" in result.output
    assert "ENCRYPTION_KEYS" in result.output


class BrokenPrices:
    """Price feeds with a bug: neither a database nor a port raises this."""

    def nanos_per_token(self, _token: Token) -> int | None:
        raise LookupError("https://user:canary-password@prices.example")


def test_a_failing_check_is_a_finding_and_the_others_run(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    result = doctor(build_app(sqlite_url, prices=BrokenPrices()))
    assert "FAIL  prices: the check failed (LookupError, test_doctor.py:" in result.output
    assert "ok    gateway" in result.output
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "canary" not in result.output


def test_keys_of_another_network_are_found(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url)
    register(app.test_client())
    with app.app_context(), unit_of_work() as session:
        session.execute(update(KeyStore).values(network="mainnet"))
    assert "this database holds keys of mainnet" in doctor(app).output
    with app.app_context(), unit_of_work() as session:
        session.execute(update(KeyStore).values(network="sandbox"))


def test_missing_redis_workers_and_prices_are_reported(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    queue, store = RecordingQueue(), InMemoryCounterStore()
    queue.away = store.away = True
    output = doctor(
        build_app(sqlite_url, queue=queue, counters=store, prices=MarketPriceFeed([], [], overrides={}))
    ).output
    for message in ("redis: does not respond", "workers: no worker has ever run", "prices: none for ETH"):
        assert message in output


def test_an_untrusted_proxy_is_reported(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    counters.flush(InMemoryCounterStore())
    store = InMemoryCounterStore()
    app = build_app(sqlite_url, counters=store)
    client = app.test_client()
    client.get("/v1/health", headers={"X-Forwarded-For": "192.0.2.1"})
    assert "proxies" not in doctor(app).output
    client.get("/metrics")
    assert "TRUSTED_PROXY_HOPS is 0" in doctor(app).output


def failures(result: Result) -> list[str]:
    return [line.removeprefix("FAIL").strip() for line in result.output.splitlines() if line.startswith("FAIL")]


def test_dangerous_settings_outside_the_sandbox_are_reported(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    settings = {
        "network": "testnet", "base_url": "http://purser.test", "allow_private_upstreams": "1",
        "secret_key": "sho,rt", "registration_rate_limit": "", "grant_budget_usd_per_day": "",
        "payouts_enabled": "1", "maintenance": "1",
    }  # fmt: skip
    result = doctor(build_app(sqlite_url, settings=settings))
    for message in (
        "REGISTRATION_RATE_LIMIT is off", "GRANT_BUDGET_USD_PER_DAY is off", "PRICE_OVERRIDES fixes",
        "SECRET_KEY contains a comma", "the database is SQLite", "METRICS_TOKEN is not set",
        "initial credits can be paid out as dollars", "MAINTENANCE is on",
    ):  # fmt: skip
        assert f"warn  settings: {message}" in result.output
    failed = failures(result)
    assert [line.split()[1] for line in failed if line.startswith("settings")] == [
        "BASE_URL", "ALLOW_PRIVATE_UPSTREAMS", "SECRET_KEY",
    ]  # fmt: skip
    assert [line.split(":")[0] for line in failed[3:]] == ["workers"]
    assert result.exit_code == 1


@pytest.mark.parametrize("network", ["testnet", "mainnet"])
def test_a_redis_that_serves_clients_without_a_password_is_found_outside_the_sandbox(
    build_app: Callable[..., Flask], sqlite_url: str, network: str
) -> None:
    finding = "FAIL  redis: serves clients without a password"
    queue = RecordingQueue()
    queue.password = ""
    for settings, is_found in (({"network": network}, True), ({"network": "sandbox"}, False)):
        app = build_app(sqlite_url, queue=queue, settings=settings)
        assert (finding in doctor(app).output) is is_found
    queue.password = "set"
    assert "FAIL  redis" not in doctor(build_app(sqlite_url, queue=queue, settings={"network": network})).output


def test_a_remote_redis_without_tls_is_reported_without_its_url(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    for url, is_reported in (
        ("redis://:canary@10.0.0.9:6379/0", True),
        ("rediss://:canary@10.0.0.9:6379/0", False),
        ("redis://:canary@127.0.0.1:6379/0", False),
    ):
        app = build_app(sqlite_url, settings={"network": "testnet", "redis_url": url})
        result = doctor(app)
        assert ("warn  redis: the connection to another machine is not encrypted" in result.output) is is_reported
        assert "canary" not in result.output


def test_a_single_endpoint_is_reported_on_mainnet(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    for urls, is_single in (([unused_url()], True), ([unused_url(), unused_url()], False)):
        chains = chain_at(*urls, network="mainnet")
        result = doctor(build_app(sqlite_url, settings={"network": "mainnet"}, chains=chains))
        assert ("warn  base: has a single endpoint" in result.output) is is_single


@pytest.mark.chain
@pytest.mark.postgres
def test_lagging_endpoints_low_gas_and_stuck_transactions_are_reported(
    postgres_url: str, build_app: Callable[..., Flask], base_node: EvmNode, own_base_node: EvmNode
) -> None:
    (behind,) = chain_at(base_node.url).values()
    (ahead,) = chain_at(own_base_node.url).values()
    own_base_node.mine(max(0, behind.head().number - ahead.head().number) + 25)
    chains = chain_at(own_base_node.url, base_node.url)
    facilitators = {ChainName.BASE: facilitator_of(chains[ChainName.BASE])}
    app = build_app(
        postgres_url, chains=chains, facilitators=facilitators, settings={"base_url": "http://127.0.0.1:8000"}
    )
    with app.app_context():
        settler, _ = treasury.settler(ChainName.BASE), treasury.recipient(ChainName.BASE)
        agent = register(app.test_client())
        fund(own_base_node, agent.address)
        own_base_node.set_automine(False)
        assert agent.move("0.001", "ETH", Prefer="respond-async").get_json()["status"] == "pending"
        agent.post(f"{agent.wallet_url}/fund", {"chain": "base", "amount": "1", "currency": "USDC"})
        with time_machine.travel(clock.now().timestamp() + 3660, tick=True):
            leases.record()
            result = doctor(app)
            warned = [line for line in result.output.splitlines() if line.startswith("warn")]
        own_base_node.set_automine(True)
    assert ") is 2" in result.output
    assert "warn  movements: a transfer on base has been pending for 61 minutes" in warned
    assert "warn  payments: the settlement key on base has gas for 0 payments" in warned
    assert f"send native tokens to {settler}" in result.output
    assert any(line.startswith("warn  audit: no file outside the database") for line in warned)
    assert len(warned) == 4, result.output
    (failed,) = failures(result)
    assert failed.startswith("database: its clock and this machine's differ by 36")
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"network": "testnet"}, "FAIL  shopping: the browser does not start here with its sandbox"),
        ({"network": "testnet", "browser_without_sandbox": "1"}, "warn  shopping: the browser runs without"),
        ({"network": "sandbox"}, "ok    shopping: a browser is available"),
    ],
)  # fmt: skip
def test_a_browser_without_working_sandbox_is_an_error_unless_allowed(
    build_app: Callable[..., Flask], sqlite_url: str, settings: dict[str, str], expected: str
) -> None:
    app = build_app(sqlite_url, settings=settings, shopper=FakeShopper(sandboxed=False))
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
    assert expected in doctor(app).output


def test_a_browser_is_checked_only_where_a_shopper_runs(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"network": "testnet"}, shopper=FakeShopper(sandboxed=False))
    assert "ok    shopping: no shopper has run" in doctor(app).output


def test_a_browser_with_a_sandbox_is_ok(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"network": "testnet"}, shopper=FakeShopper())
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
    assert "ok    shopping: a browser is available" in doctor(app).output
