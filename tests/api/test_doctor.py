"""`flask doctor`: names what is broken with its mend, shows no secret, changes nothing, and does not cry wolf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import time_machine
from alembic.migration import MigrationContext
from click.testing import Result
from flask import Flask
from sqlalchemy import select, text, update

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.deployments import DEPLOYMENTS
from app.adapters.prices import MarketPrices
from app.core import clock, heartbeats, tallies
from app.core.chains import ChainName, Token
from app.core.unit_of_work import reading, unit_of_work
from app.payments import treasury
from app.wallets.models import KeyStore
from tests.support.agents import register
from tests.support.applications import KeptTallies, RecordingQueue, key_of, make_app, settings_for
from tests.support.chains import fund
from tests.support.evm import EvmNode
from tests.support.loopback_http import unused_url
from tests.support.payments import till_of


def doctor(app: Flask) -> Result:
    return app.test_cli_runner().invoke(args=["doctor"])


def chain_at(*urls: str, network: str = "sandbox") -> dict[ChainName, EvmChain]:
    deployment = DEPLOYMENTS[network, "base"]
    return {ChainName.BASE: EvmChain(ChainName.BASE, deployment, rpc_urls=urls, deposit_confirmations=1)}


def test_a_service_that_is_well_has_nothing_to_mend_and_nothing_is_changed(
    each_database_url: str, build_app: Callable[..., Flask], base_node: EvmNode
) -> None:
    app = build_app(each_database_url, chains=chain_at(base_node.url))
    with app.app_context():
        heartbeats.beat()
    register(app.test_client())
    result = doctor(app)
    assert "FAIL" not in result.output, result.output
    assert "endpoint 1 serves" in result.output
    assert result.exit_code == 0
    with app.app_context(), reading() as session:
        # Looking must not claim a database for a network, as signing does.
        assert session.scalar(select(KeyStore.network)) == "sandbox"


def test_each_broken_endpoint_is_named_by_its_place_and_never_by_its_address(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode, ethereum_node: EvmNode
) -> None:
    dead = unused_url()
    app = build_app(sqlite_url, chains=chain_at(dead, ethereum_node.url, base_node.url))
    result = doctor(app)
    assert "warn  base: endpoint 1 gives no usable answer" in result.output
    assert "FAIL  base: endpoint 2 serves another chain" in result.output
    assert "ok    base: endpoint 3 serves" in result.output
    assert "entry 2 of BASE_RPC_URL" in result.output
    assert result.exit_code == 1
    for url in (dead, ethereum_node.url, base_node.url):
        assert url.rpartition(":")[2] not in result.output


def test_a_chain_without_our_contracts_is_found(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    (chain,) = chain_at(base_node.url).values()
    assert chain.diagnose().missing == ()
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
    assert "it is at 0001" in result.output
    assert "flask --app wsgi db upgrade" in result.output
    assert result.exit_code == 1


def test_a_database_that_is_away_is_said_and_its_password_is_not() -> None:
    app = make_app(settings_for("postgresql://purser:canary-password@127.0.0.1:1/purser"))
    result = doctor(app)
    assert "FAIL  database: it does not answer" in result.output
    assert "canary" not in result.output


def test_keys_that_the_settings_cannot_open_are_found_before_money_is_needed(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    register(build_app(sqlite_url).test_client())
    restored = build_app(sqlite_url, settings={"encryption_keys": key_of("another")})
    result = doctor(restored)
    assert "1 of the oldest and newest" in result.output or "2 of the oldest and newest" in result.output
    assert "ENCRYPTION_KEYS" in result.output


class BrokenPrices:
    """A part with a defect: neither a database nor a port fails like this."""

    def nanos_per_token(self, _token: Token) -> int | None:
        raise LookupError("https://user:canary-password@prices.example")


def test_a_part_that_cannot_even_be_looked_at_is_a_finding_and_the_rest_is_looked_at(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    result = doctor(build_app(sqlite_url, prices=BrokenPrices()))
    assert "FAIL  prices: looking at it failed (LookupError, test_doctor.py:" in result.output
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


def test_missing_redis_workers_and_prices_are_said(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    queue, sums = RecordingQueue(), KeptTallies()
    queue.away = sums.away = True
    output = doctor(
        build_app(sqlite_url, queue=queue, tallies=sums, prices=MarketPrices([], [], overrides={}))
    ).output
    for said in ("redis: it does not answer", "workers: no worker was ever alive", "prices: none for ETH"):
        assert said in output


def test_a_proxy_that_nobody_believes_is_noticed(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    tallies.take()
    sums = KeptTallies()
    app = build_app(sqlite_url, tallies=sums)
    client = app.test_client()
    client.get("/v1/health", headers={"X-Forwarded-For": "192.0.2.1"})
    assert "proxies" not in doctor(app).output
    client.get("/metrics")
    assert "TRUSTED_PROXY_HOPS is 0" in doctor(app).output


def failures(result: Result) -> list[str]:
    return [
        line.removeprefix("FAIL").strip() for line in result.output.splitlines() if line.startswith("FAIL")
    ]


def test_dangerous_settings_outside_the_sandbox_are_said(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    settings = {
        "network": "testnet", "base_url": "http://purser.test", "allow_private_upstreams": "1",
        "secret_key": "sho,rt", "registration_rate_limit": "", "grant_budget_usd_per_day": "",
    }  # fmt: skip
    result = doctor(build_app(sqlite_url, settings=settings))
    for said in (
        "REGISTRATION_RATE_LIMIT is off", "GRANT_BUDGET_USD_PER_DAY is off", "PRICE_OVERRIDES fixes",
        "SECRET_KEY holds a comma", "the database is SQLite", "METRICS_TOKEN is not set",
    ):  # fmt: skip
        assert f"warn  settings: {said}" in result.output
    failed = failures(result)
    assert [line.split()[1] for line in failed if line.startswith("settings")] == [
        "BASE_URL", "ALLOW_PRIVATE_UPSTREAMS", "SECRET_KEY",
    ]  # fmt: skip
    assert [line.split(":")[0] for line in failed[3:]] == ["workers"]
    assert result.exit_code == 1


def test_one_endpoint_alone_is_said_where_money_is_real(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    for urls, hangs in (([unused_url()], True), ([unused_url(), unused_url()], False)):
        chains = chain_at(*urls, network="mainnet")
        result = doctor(build_app(sqlite_url, settings={"network": "mainnet"}, chains=chains))
        assert ("warn  base: it hangs on one endpoint" in result.output) is hangs


@pytest.mark.chain
@pytest.mark.postgres
def test_what_is_behind_runs_low_or_waits_for_long_is_said(
    postgres_url: str, build_app: Callable[..., Flask], base_node: EvmNode, own_base_node: EvmNode
) -> None:
    (behind,) = chain_at(base_node.url).values()
    (ahead,) = chain_at(own_base_node.url).values()
    own_base_node.mine(max(0, behind.head().number - ahead.head().number) + 25)
    chains = chain_at(own_base_node.url, base_node.url)
    tills = {ChainName.BASE: till_of(chains[ChainName.BASE])}
    app = build_app(postgres_url, chains=chains, tills=tills, settings={"base_url": "http://127.0.0.1:8000"})
    with app.app_context():
        settler, _ = treasury.settler(ChainName.BASE), treasury.recipient(ChainName.BASE)
        agent = register(app.test_client())
        fund(own_base_node, agent.address)
        own_base_node.set_automine(False)
        assert agent.move("0.001", "ETH", Prefer="respond-async").get_json()["status"] == "pending"
        agent.post(f"{agent.wallet_url}/fund", {"chain": "base", "amount": "1", "currency": "USDC"})
        with time_machine.travel(clock.now().timestamp() + 3660, tick=True):
            heartbeats.beat()
            result = doctor(app)
            warned = [line for line in result.output.splitlines() if line.startswith("warn")]
        own_base_node.set_automine(True)
    assert "warn  base: endpoint 2 is 2" in result.output
    assert "warn  movements: a transfer on base is pending for 61 minutes" in warned
    assert "warn  payments: the settlement key on base has gas for 0 payments" in warned
    assert f"send native coins to {settler}" in result.output
    assert len(warned) == 3, result.output
    (failed,) = failures(result)
    assert failed.startswith("database: its clock and this machine's are 36")
    assert result.exit_code == 1
