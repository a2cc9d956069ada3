"""The chain that a payment to a web service is made on: the cheapest offer that the wallet can pay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core.chains import ChainName
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.chains import evm_chain, fund
from tests.support.faults import FaultyChain
from tests.support.payments import decoded
from tests.support.sellers import PAYEE, ScriptedSeller, scripted_seller
from tests.support.solana import fund_solana, running_solana, solana_chain
from tests.support.solana_sellers import SolanaSeller, solana_seller

pytestmark = pytest.mark.chain


@dataclass(frozen=True, slots=True)
class Market:
    """An agent without funds, and a seller that takes a cent on Base or on Solana."""

    agent: Agent
    base: EvmNode
    solana: SolanaNode
    chains: dict[ChainName, FaultyChain]
    seller: ScriptedSeller
    on_solana: SolanaSeller

    def fund(self, chain: ChainName) -> None:
        if chain is ChainName.BASE:
            fund(self.base, self.agent.address, eth=0, dollars=1)
        else:
            fund_solana(self.solana, self.agent.solana_address, sol=0, dollars=1)

    def fetch(self, **body: Any) -> Any:
        order = {"url": self.seller.url + "/report", "max_amount_usd": 0.05, **body}
        answer = self.agent.post(f"{self.agent.wallet_url}/x402/fetch", order)
        return answer.get_json()

    def chosen(self, **body: Any) -> str | None:
        found = self.fetch(dry_run=True, **body)
        assert "code" not in found, found
        chain: str | None = found["chain"]
        return chain


@pytest.fixture
def market(build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode) -> Iterator[Market]:
    with running_solana(slot_ms=0) as solana, scripted_seller(base_node) as seller, solana_seller(solana) as on_solana:
        solana.advance(100)
        chains = {
            ChainName.BASE: FaultyChain(evm_chain(base_node)),
            ChainName.SOLANA: FaultyChain(solana_chain(solana)),
        }
        app = build_app(
            sqlite_url,
            settings={"allow_private_upstreams": True, "confirmation_wait_seconds": "5"},
            chains=chains,
            public_upstream=HttpUpstream(connect_seconds=5, read_seconds=30),
        )
        # Solana is stated first.
        seller.terms["accepts"].insert(0, on_solana.offer())
        with app.app_context():
            yield Market(register(app.test_client()), base_node, solana, chains, seller, on_solana)


def test_the_cheapest_offer_is_paid_and_base_among_equal_ones(market: Market) -> None:
    market.fund(ChainName.BASE)
    market.fund(ChainName.SOLANA)
    assert market.chosen() == "base"
    assert market.chosen(networks=["solana", "ethereum"]) == "solana"
    market.on_solana.offer()["amount"] = "9999"
    assert market.chosen() == "solana"


def test_the_chain_on_which_the_wallet_has_the_amount_is_used(market: Market) -> None:
    refusal = market.fetch(dry_run=True)
    assert (refusal["code"], refusal["details"]["missing"]) == ("PAYMENT_FAILED", "0.01")
    market.fund(ChainName.SOLANA)

    def settle(_seller: ScriptedSeller, exchange: Any, payment: Any) -> None:
        assert decoded(market.seller.headers[-1])["accepted"] == market.on_solana.offer()
        market.on_solana.settle(payment)
        exchange.json({"report": "sunny"})

    market.seller.behave = settle
    payment = market.fetch()["payment"]
    assert (payment["chain"], payment["state"]) == ("solana", "paid")


def test_a_chain_that_cannot_be_read_or_would_refuse_the_payment_is_passed_over(market: Market) -> None:
    market.fund(ChainName.BASE)
    market.fund(ChainName.SOLANA)
    market.on_solana.offer()["amount"] = "9999"
    market.on_solana.offer()["extra"]["feePayer"] = market.on_solana.offer()["payTo"]
    assert market.chosen() == "base", "this fee payer has no lamports"
    market.chains[ChainName.BASE].raising("balances", "before", Unreachable("chain_unreachable"))
    refusal = market.fetch(dry_run=True)
    assert (refusal["code"], refusal["details"]["reason"]) == ("PAYMENT_FAILED", "simulation_failed")


def test_the_allowed_address_of_one_chain_is_enough(market: Market) -> None:
    market.fund(ChainName.BASE)
    market.fund(ChainName.SOLANA)

    def allow(*addresses: str) -> None:
        path = f"{market.agent.wallet_url}/controls"
        body = {"allowed_addresses": list(addresses)}
        answer = market.agent.client.put(path, json=body, headers=market.agent.headers())
        assert answer.status_code == 200, answer.get_json()

    allow(market.on_solana.offer()["payTo"])
    assert market.chosen() == "solana"
    allow(PAYEE)
    assert market.chosen() == "base"
    allow("0x00000000000000000000000000000000BEEF0003")
    assert market.fetch(dry_run=True)["code"] == "ADDRESS_NOT_ALLOWED"
