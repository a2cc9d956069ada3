"""The operator's commands for the treasury: balances and withdrawals."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from app.payments.treasury import OWNER_AGENT_ID
from sandbox.evm import EvmNode
from tests.support.chains import ether
from tests.support.evm import Person
from tests.support.payments import PRICE, Shop, shop

pytestmark = pytest.mark.chain
BASE = ChainName.BASE


@pytest.fixture
def open_shop(build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, {BASE: chains[BASE]}) as made:
        yield made


def run(made: Shop, *arguments: str) -> tuple[int, str]:
    done = made.app.test_cli_runner().invoke(args=["treasury", *arguments])
    return done.exit_code, done.output


def test_received_payments_are_shown_and_can_be_withdrawn_once_there_is_gas(
    open_shop: Shop, base_node: EvmNode, chains: dict[ChainName, EvmChain]
) -> None:
    to = Person().address
    base_node.fund_usdc(open_shop.recipient(BASE), PRICE)
    code, shown = run(open_shop, "show")
    assert (code, f"base: payments go to {open_shop.recipient(BASE)} (0 ETH, 0.01 USDC)" in shown) == (0, True)
    assert "signed payments are not offered: the settlement key lacks gas" in shown
    assert "base: failed payments used 0 of 5 USD of gas in a day" in shown
    withdrawal = ("withdraw", "--chain", "base", "--to", to, "--amount", "0.01")
    code, output = run(open_shop, *withdrawal)
    assert (code, "Missing:" in output) == (1, True)
    # The treasury pays its own network fee; the settlement key can fund it.
    base_node.fund_eth(open_shop.settler(BASE), ether(1))
    gas = ("withdraw", "--chain", "base", "--to", open_shop.recipient(BASE), "--amount", "0.1")
    assert run(open_shop, *gas, "--currency", "ETH", "--from", "settlement")[0] == 0
    assert run(open_shop, *withdrawal)[0] == 0
    balances = chains[BASE].balances(to)
    assert (balances.of(USDC).units, balances.of(ETH).units) == (PRICE, 0)
    assert "signed payments are offered" in run(open_shop, "show")[1]


def test_no_master_key_gets_a_key_of_the_treasury_or_changes_its_limits(open_shop: Shop) -> None:
    open_shop.recipient(BASE)
    made = open_shop.app.test_cli_runner().invoke(args=["master-keys", "create", "--name", "ops"])
    headers = {"X-Master-Key": made.stdout.strip()}
    client, path = open_shop.app.test_client(), f"/v1/platform/agents/{OWNER_AGENT_ID}"
    for method, act in (
        ("POST", "/rotate-key"),
        ("POST", "/keys"),
        ("PUT", "/controls"),
        ("POST", "/freeze"),
        ("GET", ""),
    ):
        answer = client.open(path + act, method=method, json={"per_tx_limit_usd": 1}, headers=headers)
        assert answer.status_code == 404, act
    listed = client.get("/v1/platform/agents", headers=headers).get_json()["agents"]
    assert OWNER_AGENT_ID not in [each["id"] for each in listed]
