"""Signed payments at high network fees: none is settled if the fee exceeds its price."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.core.chains import SOL, USDC, ChainName
from sandbox.evm import EvmNode
from sandbox.evm.artifacts import Artifacts
from sandbox.evm.builder import Builder
from sandbox.evm.optimism import L1Fees, set_l1_fees
from solana_node import SolanaNode
from tests.support.chains import ether, evm_chain
from tests.support.evm import sent as pay
from tests.support.payments import (
    PRICE,
    EvmPayer,
    Shop,
    SolanaPayer,
    by_hash,
    decoded,
    offered,
    person_with,
    shop,
    signed_headers,
)
from tests.support.solana import fund_solana, solana_chain

pytestmark = pytest.mark.chain

BASE, SOLANA = ChainName.BASE, ChainName.SOLANA
GWEI = 10**9


@pytest.fixture
def base_shop(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, {BASE: evm_chain(own_base_node)}) as made:
        own_base_node.fund_eth(made.settler(BASE), ether(1))
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


def raise_base_fee(made: Shop, node: EvmNode, wei: int) -> None:
    node.rpc("anvil_setNextBlockBaseFeePerGas", hex(wei))
    node.mine(1)
    made.expire_capacity()


def raise_l1_fee(made: Shop, node: EvmNode, wei: int) -> None:
    accounts = tuple(node.rpc("eth_accounts"))
    artifacts = Artifacts(node._cache)
    builder = Builder(node._connected(), artifacts, deployment=node.deployment, accounts=accounts)
    set_l1_fees(builder, L1Fees(l1_base_fee_wei=wei))
    made.expire_capacity()


def networks(answer: TestResponse) -> list[str]:
    accepts = decoded(answer.headers["PAYMENT-REQUIRED"])["accepts"]
    return list(dict.fromkeys(each["network"] for each in accepts))


def refusal(answer: TestResponse) -> tuple[int, str, str]:
    body = answer.get_json()
    assert "Retry-After" in answer.headers
    return answer.status_code, body["code"], body["details"]["reason"]


@pytest.mark.parametrize("rise", [raise_base_fee, raise_l1_fee])
def test_a_chain_with_a_fee_above_the_price_is_not_offered(
    base_shop: Shop, own_base_node: EvmNode, rise: Callable[[Shop, EvmNode, int], None]
) -> None:
    assert networks(base_shop.ask()) == ["eip155:908453"]
    # Each makes a submission cost more than 0.01 USD, at 3 000 USD for an ether.
    rise(base_shop, own_base_node, GWEI // 10 if rise is raise_base_fee else 500 * GWEI)
    expensive = base_shop.ask()
    assert networks(expensive) == []
    instructions = expensive.get_json()["payment"]["instructions"]
    assert instructions.startswith("Signed payments are not accepted on base at the moment, since the network fee")
    assert "x402 client" not in instructions
    # The price of a more expensive call still covers it.
    body = {"model": "gpt-5", "messages": [], "max_tokens": 40_000}
    covered = base_shop.app.test_client().post("/v1/gateway/openai/chat/completions", json=body)
    assert networks(covered) == ["eip155:908453"]


def test_a_fee_rise_between_terms_and_payment_consumes_nothing(base_shop: Shop, own_base_node: EvmNode) -> None:
    terms = offered(base_shop.ask())
    headers = signed_headers(terms, EvmPayer(own_base_node).authorize(terms))
    own_base_node.rpc("anvil_setNextBlockBaseFeePerGas", hex(GWEI // 10))
    own_base_node.mine(1)
    # Also while this process still has a lower fee cached.
    for _ in range(2):
        assert refusal(base_shop.ask(headers)) == (402, "PAYMENT_INVALID", "network_fee_too_high")
        base_shop.expire_capacity()
    assert (base_shop.claims(), base_shop.payments(), base_shop.served()) == (set(), [], 0)
    settler = base_shop.settler(BASE)
    assert int(own_base_node.rpc("eth_getTransactionCount", settler, "pending"), 16) == 0
    raise_base_fee(base_shop, own_base_node, GWEI // 1000)
    assert base_shop.ask(headers).status_code == 200
    spent_wei = ether(1) - int(own_base_node.rpc("eth_getBalance", settler, "latest"), 16)
    # At 3 000 USD for an ether, and a price of 0.01 USD.
    assert 0 < 3_000 * spent_wei <= 10**16


def test_a_payment_by_hash_is_accepted_at_any_network_fee(base_shop: Shop, own_base_node: EvmNode) -> None:
    raise_base_fee(base_shop, own_base_node, GWEI)
    payer, chain = person_with(own_base_node), evm_chain(own_base_node)
    done = pay(chain, payer, base_shop.recipient(BASE), PRICE, token=USDC)
    own_base_node.mine(6)
    assert base_shop.ask(by_hash(done.tx_hash, BASE)).status_code == 200


def test_on_solana_the_payers_priority_fee_is_paid_up_to_the_price(
    build_app: Callable[..., Flask], sqlite_url: str, solana_node: SolanaNode
) -> None:
    node = solana_node
    chains = {SOLANA: solana_chain(node)}

    def supplied(made: Shop) -> None:
        fund_solana(node, made.settler(SOLANA), sol=1)
        fund_solana(node, made.recipient(SOLANA), sol=0, dollars=0.000001)
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})

    # 0.01 USD are 33 333 lamports.
    with shop(build_app, sqlite_url, chains, prices={SOL: 300 * 10**9}) as made:
        supplied(made)
        terms = offered(made.ask({"X-Payment-Chain": "solana"}), "solana:")
        payer = SolanaPayer(node)
        # 60 000 units at half a lamport each, and two signatures: 40 000 lamports.
        excessive = signed_headers(terms, payer.transfer(terms, price=500_000))
        assert refusal(made.ask(excessive)) == (402, "PAYMENT_INVALID", "network_fee_too_high")
        assert (made.claims(), made.served()) == (set(), 0)
        assert made.ask(signed_headers(terms, payer.transfer(terms, price=300_000))).status_code == 200
    # Two signatures alone are 0.02 USD.
    with shop(build_app, sqlite_url, chains, prices={SOL: 2_000 * 10**9}) as made:
        supplied(made)
        expensive = made.ask({"X-Payment-Chain": "solana"})
        assert networks(expensive) == []
        assert "not accepted on solana at the moment" in expensive.get_json()["payment"]["instructions"]
