"""Published x402 middlewares sell to wallets of this service, on a chain with the identifiers of the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from flask import Flask

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core.chains import ChainName
from sandbox.evm import EvmNode
from tests.support import compatibility
from tests.support.agents import Agent, register
from tests.support.buyers import buyer_on
from tests.support.chains import evm_chain, fund
from tests.support.drivers import EvmDriver
from tests.support.facilitators import http_facilitator
from tests.support.published import serve_node, serve_python
from tests.support.sellers import PAYEE, uses_of

NETWORK = "eip155:8453"
# The servers' environments are created first where they are missing, by one test while others wait.
pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def base() -> Iterator[EvmNode]:
    with EvmNode("base", network_ids="mainnet", block_time=1) as node:
        yield node


@pytest.fixture(scope="module")
def facilitator(base: EvmNode) -> Iterator[str]:
    with http_facilitator(base) as url:
        yield url


@pytest.fixture
def agent(build_app: Callable[..., Flask], sqlite_url: str, base: EvmNode) -> Iterator[Agent]:
    app = build_app(
        sqlite_url,
        settings={"allow_private_upstreams": True},
        chains={ChainName.BASE: evm_chain(base)},
        public_upstream=HttpUpstream(connect_seconds=5, read_seconds=60),
    )
    with app.app_context():
        agent = register(app.test_client())
        fund(base, agent.address, eth=0, dollars=1)
        yield agent


def buys_once(
    agent: Agent, base: EvmNode, serving: AbstractContextManager[Any], *, protocol: str, earlier: int = 0
) -> str:
    """Buy a report twice with one key, after `earlier` ones; return the version of the seller's package."""
    with serving as seller:
        body = {"url": seller["url"] + "/report", "max_amount_usd": 0.05}
        key = {"Idempotency-Key": seller["url"]}
        first = agent.post(f"{agent.wallet_url}/x402/fetch", body, headers=key)
        again = agent.post(f"{agent.wallet_url}/x402/fetch", body, headers=key)
    found = first.get_json()
    assert (first.status_code, found["status"]) == (200, 200), found
    assert '"report"' in found["body"]
    payment = found["payment"]
    assert (payment["state"], payment["protocol"], payment["pay_to"]) == ("paid", protocol, PAYEE), payment
    assert again.get_json()["payment"] == payment
    assert uses_of(base, agent.address) == earlier + 1
    return str(seller["version"])


def test_fastapi_s_middleware_sells_to_a_wallet(agent: Agent, base: EvmNode, facilitator: str) -> None:
    arguments = (facilitator, NETWORK, PAYEE)
    serving = serve_python("fastapi_seller.py", *arguments, requirements="x402-fastapi.txt")
    version = buys_once(agent, base, serving, protocol="x402/2")
    compatibility.check("PyPI", "x402[evm,fastapi]", version, ["sell to a wallet"])


def test_express_s_middleware_sells_to_a_wallet(agent: Agent, base: EvmNode, facilitator: str) -> None:
    serving = serve_node("express_seller.mjs", "@x402/express", facilitator, NETWORK, PAYEE)
    version = buys_once(agent, base, serving, protocol="x402/2")
    compatibility.check("npm", "@x402/express", version, ["sell to a wallet"])


def test_the_legacy_middleware_of_express_sells_to_a_wallet(agent: Agent, base: EvmNode, facilitator: str) -> None:
    serving = serve_node("express_seller.mjs", "x402-express", facilitator, "base", PAYEE)
    version = buys_once(agent, base, serving, protocol="x402/1")
    compatibility.check("npm", "x402-express", version, ["sell to a wallet (version 1)"])


def test_mppx_sells_to_a_wallet(agent: Agent, base: EvmNode, facilitator: str) -> None:
    version = buys_once(agent, base, serve_node("mpp_sells.mjs", facilitator, PAYEE, "mpp"), protocol="mpp")
    buys_once(agent, base, serve_node("mpp_sells.mjs", facilitator, PAYEE), protocol="x402/2", earlier=1)
    bound = serve_node("mpp_sells.mjs", facilitator, PAYEE, "required")
    buys_once(agent, base, bound, protocol="x402/2", earlier=2)
    examples = ["sell to a wallet (MPP)", "sell to a wallet (x402)", "sell to a wallet (x402, bound to the route)"]
    compatibility.check("npm", "mppx with Express", version, examples)


def test_pympp_sells_to_a_wallet_by_x402(agent: Agent, base: EvmNode, facilitator: str) -> None:
    for earlier, binding in enumerate(("required", "resource")):
        serving = serve_python("mpp_sells.py", facilitator, PAYEE, binding, requirements="mpp.txt")
        version = buys_once(agent, base, serving, protocol="x402/2", earlier=earlier)
    examples = ["sell to a wallet (x402, bound to the route)", "sell to a wallet (x402)"]
    compatibility.check("PyPI", "pympp[evm] as a seller", version, examples)


def test_pympp_without_x402_refuses_the_nonce_of_the_draft_and_nothing_is_lost(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    """The amount is held until the authorization can never be used; repeated requests send the same one."""
    with (
        EvmNode("base", network_ids="mainnet", block_time=1) as node,
        http_facilitator(node) as facilitator,
        serve_python("mpp_sells.py", facilitator, PAYEE, "mpp", requirements="mpp.txt") as seller,
        buyer_on(build_app, sqlite_url, EvmDriver(node=node, real=evm_chain(node))) as buyer,
    ):
        found = [buyer.fetch(seller["url"] + "/report", key="one", wait=1).get_json() for _ in range(3)]
        for each in found:
            payment = each["payment"]
            assert (each["status"], payment["state"], payment["protocol"]) == (402, "pending", "mpp")
            assert "challenge hash mismatch" in each["body"]
        assert len({each["payment"]["transaction_id"] for each in found}) == 1
        assert (buyer.row()["status"], buyer.spent(), buyer.dollars()) == ("pending", 0.01, 1_000_000)
        buyer.expire()
        buyer.run_workers(minutes=30)
        assert (buyer.row()["status"], buyer.spent(), buyer.dollars()) == ("failed", 0, 1_000_000)
        assert uses_of(node, buyer.agent.address) == 0
