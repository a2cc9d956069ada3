"""Prices from Chainlink's feeds: exact, current, and missing rather than wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest
from eth_abi.abi import encode

from app.adapters.prices import ChainlinkPrices
from app.core.chains import ETH, SOL
from app.core.money import NANOS_PER_USD
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from tests.support.evm import chain_at, proxy, spoil
from tests.support.loopback_http import unused_url

pytestmark = pytest.mark.chain


@pytest.fixture(scope="module", params=["ethereum", "base"])
def node(request: pytest.FixtureRequest) -> Iterator[EvmNode]:
    with EvmNode(request.param) as running:
        yield running


def _answer(*rounds: tuple[int, int] | None) -> str:
    """Return Multicall3's result for rounds `(answer, updated_at)`; None for a feed that failed."""
    results = [
        (False, b"")
        if entry is None
        else (True, encode(["uint80", "int256", "uint256", "uint256", "uint80"], [9, entry[0], 0, entry[1], 9]))
        for entry in rounds
    ]
    return "0x" + encode(["(bool,bytes)[]"], [results]).hex()


def test_both_prices_come_from_one_call_to_the_last_digit(node: EvmNode) -> None:
    node.set_price("ETH", Decimal("2987.12345678"))
    node.set_price("SOL", Decimal("150.00000001"))
    with proxy(node.url) as front:
        chain = chain_at(node, front.url)
        prices = ChainlinkPrices(chain.rpc, node.deployment).read()

        assert front.methods() == ["eth_chainId", "eth_call"]
    assert prices == {ETH: 2_987_123_456_780, SOL: 150_000_000_010}


def test_each_feed_is_stale_by_its_own_limit(node: EvmNode) -> None:
    ether, sol = node.deployment.eth_usd_feed, node.deployment.sol_usd_feed
    assert sol is not None
    assert ether.max_age_seconds < sol.max_age_seconds
    now = int(time.time())
    with proxy(node.url) as front:
        prices = ChainlinkPrices(chain_at(node, front.url).rpc, node.deployment)
        stale_time = now - ether.max_age_seconds - 5
        front.after = spoil("eth_call", _answer((3000 * 10**8, stale_time), (150 * 10**8, stale_time)))
        assert prices.read() == {SOL: 150 * NANOS_PER_USD}
        front.after = spoil("eth_call", _answer((3000 * 10**8, now), (150 * 10**8, 0)))
        assert prices.read() == {ETH: 3000 * NANOS_PER_USD}


@pytest.mark.parametrize("wrong", [0, -1, None], ids=["zero", "negative", "reverted"])
def test_a_feed_without_a_price_is_left_out(node: EvmNode, wrong: int | None) -> None:
    now = int(time.time())
    with proxy(node.url) as front:
        front.after = spoil("eth_call", _answer(None if wrong is None else (wrong, now), (150 * 10**8, now)))
        prices = ChainlinkPrices(chain_at(node, front.url).rpc, node.deployment)

        assert prices.read() == {SOL: 150 * NANOS_PER_USD}


def test_a_chain_without_a_sol_feed_returns_ether_only(node: EvmNode) -> None:
    node.set_price("ETH", Decimal(3000))
    deployment = replace(node.deployment, sol_usd_feed=None)

    assert ChainlinkPrices(chain_at(node).rpc, deployment).read() == {ETH: 3000 * NANOS_PER_USD}


def test_a_malformed_price_and_a_missing_node_are_unreachable(node: EvmNode) -> None:
    with proxy(node.url) as front:
        for lie in ("0x", _answer((1, 1)), "0x" + "ff" * 64, 5):
            front.after = spoil("eth_call", lie)
            with pytest.raises(Unreachable):
                ChainlinkPrices(chain_at(node, front.url).rpc, node.deployment).read()
    with pytest.raises(Unreachable):
        ChainlinkPrices(chain_at(node, unused_url()).rpc, node.deployment).read()
