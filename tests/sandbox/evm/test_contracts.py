from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from eth_account import Account

from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data, decode_result
from sandbox.evm.price_feeds import feed_address

HEADER_ONLY = False


def read(node: EvmNode, address: str, signature: str, returns: str, *arguments: str | int) -> tuple[Any, ...]:
    call = {"to": address, "data": call_data(signature, *arguments)}
    return decode_result(returns, node.rpc("eth_call", call, "latest"))


@pytest.fixture(params=["ethereum", "base"])
def node(request: pytest.FixtureRequest) -> EvmNode:
    found: EvmNode = request.getfixturevalue(f"{request.param}_node")
    return found


def test_usdc_is_circles_token_and_moves(node: EvmNode) -> None:
    usdc = node.deployment.usdc
    assert read(node, usdc, "symbol()", "(string)") == ("USDC",)
    assert read(node, usdc, "name()", "(string)") == ("USD Coin",)
    assert read(node, usdc, "version()", "(string)") == ("2",)
    assert read(node, usdc, "decimals()", "(uint8)") == (6,)
    recipient = Account.create().address
    node.fund_usdc(recipient, 1_500_000)
    assert read(node, usdc, "balanceOf(address)", "(uint256)", recipient) == (1_500_000,)


def test_a_faucet_payment_looks_like_any_deposit(node: EvmNode) -> None:
    recipient = Account.create().address
    usdc_receipt = node.rpc("eth_getTransactionReceipt", node.fund_usdc(recipient, 7))
    eth_receipt = node.rpc("eth_getTransactionReceipt", node.fund_eth(recipient, 9))
    (log,) = usdc_receipt["logs"]
    assert log["address"] == node.deployment.usdc.lower()
    assert log["topics"][1][-40:] == usdc_receipt["from"][2:] != "0" * 40
    assert eth_receipt["from"] == usdc_receipt["from"]
    assert int(node.rpc("eth_getBalance", recipient, "latest"), 16) == 9


def test_the_pool_quotes_at_the_feeds_price(node: EvmNode) -> None:
    chain = node.deployment
    signature = "quoteExactInputSingle((address,address,uint256,uint24,uint160))"
    order = (chain.weth, chain.usdc, 10**18, 500, 0)
    call = {"to": chain.uniswap_quoter, "data": call_data(signature, order)}
    answer = node.rpc("eth_call", call, "latest")
    out, *_ = decode_result("(uint256,uint160,uint32,uint256)", answer)
    assert 2_990 * 10**6 < out < 3_000 * 10**6


def test_the_pool_has_the_mainnet_address(ethereum_node: EvmNode, base_node: EvmNode) -> None:
    expected = {
        "ethereum": "0x88e6a0c2ddd26feeb64f039a2c41296fcb3f5640",
        "base": "0xd0b53d9277642d899df5c87a3966a349a798f224",
    }
    for node in (ethereum_node, base_node):
        chain = node.deployment
        pool = read(
            node, chain.uniswap_factory, "getPool(address,address,uint24)", "(address)", *(chain.usdc, chain.weth, 500)
        )
        assert pool == (expected[node.name],)


def test_multicall_reads_a_native_balance(node: EvmNode) -> None:
    recipient = Account.create().address
    node.fund_eth(recipient, 123)
    assert read(node, node.deployment.multicall3, "getEthBalance(address)", "(uint256)", recipient) == (123,)


@pytest.mark.parametrize(("symbol", "usd"), [("ETH", 3000), ("SOL", 150), ("USDC", 1)])
def test_a_feed_is_as_fresh_as_the_newest_block(node: EvmNode, symbol: str, usd: int) -> None:
    node.mine(50)
    feed = feed_address(node.deployment, symbol)
    returns = "(uint80,int256,uint256,uint256,uint80)"
    _, answer, _, updated_at, _ = read(node, feed, "latestRoundData()", returns)
    head = node.rpc("eth_getBlockByNumber", "latest", HEADER_ONLY)
    assert answer == usd * 10**8
    assert updated_at >= int(head["timestamp"], 16)
    assert read(node, feed, "decimals()", "(uint8)") == (8,)


def test_a_price_can_be_set(own_base_node: EvmNode) -> None:
    node = own_base_node
    node.set_price("SOL", Decimal("151.25"))
    returns = "(uint80,int256,uint256,uint256,uint80)"
    feed = feed_address(node.deployment, "SOL")
    assert read(node, feed, "latestRoundData()", returns)[1] == 15_125_000_000


def test_nothing_signed_in_the_sandbox_is_valid_on_a_real_chain(node: EvmNode) -> None:
    assert int(node.rpc("eth_chainId"), 16) == node.chain_id
    assert node.chain_id not in (1, 8453, 11155111, 84532)


def test_third_party_clients_can_have_the_real_chain_ids() -> None:
    with EvmNode("base", network_ids="mainnet") as node:
        assert int(node.rpc("eth_chainId"), 16) == 8453
        assert node.deployment.usdc == "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
