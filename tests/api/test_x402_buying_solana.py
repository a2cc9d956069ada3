"""Payments to web services on Solana: the seller's fee payer completes them, and the wallet's history shows it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import time_machine
from flask import Flask
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import select
from werkzeug.test import TestResponse

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.send import tokens
from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.wallets.core.models import SignedAttempt
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.payments import decoded
from tests.support.sellers import CENT, ScriptedSeller, serve
from tests.support.solana import FINALIZED, fund_solana, held, running_solana, solana_chain
from tests.support.solana_sellers import MAINNET, SolanaSeller, partial_transaction, solana_seller
from tests.support.upstreams import Exchange
from workers import confirmations

pytestmark = pytest.mark.chain
# Past the blockhash, and as long as an index of addresses may be late.
EXPIRED_SLOTS = 1_600


@dataclass(frozen=True, slots=True)
class Buyer:
    """An agent with a dollar and no lamports."""

    agent: Agent
    node: SolanaNode

    def fetch(self, url: str, *, key: str = "once", **body: Any) -> TestResponse:
        order = {"url": url, "max_amount_usd": 0.05, **body}
        answer: TestResponse = self.agent.client.post(
            f"{self.agent.wallet_url}/x402/fetch", json=order, headers=self.agent.headers(Idempotency_Key=key)
        )
        return answer

    def paid(self, url: str, **more: Any) -> Mapping[str, Any]:
        body = self.fetch(url, **more).get_json()
        assert body["payment"]["state"] == "paid", body
        return dict(body)

    def refused(self, url: str, **more: Any) -> Mapping[str, Any]:
        body: dict[str, Any] = self.fetch(url, **more).get_json()
        return {"code": body["code"], **body["details"]}

    def row(self) -> Mapping[str, Any]:
        path = f"{self.agent.wallet_url}/transactions"
        [found] = self.agent.client.get(path, headers=self.agent.headers()).get_json()["transactions"]
        return dict(found)

    def run_workers(self, *, minutes: int = 1) -> None:
        with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
            confirmations.confirm("solana")

    def dollars(self) -> int:
        return held(solana_chain(self.node), self.agent.solana_address)[1]


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    with running_solana(slot_ms=0) as started:
        started.advance(100)
        yield started


@contextmanager
def buyer_on(
    build_app: Callable[..., Flask], database_url: str, node: SolanaNode, chain: SolanaChain
) -> Iterator[Buyer]:
    upstream = HttpUpstream(connect_seconds=5, read_seconds=30)
    settings = {"allow_private_upstreams": True, "confirmation_wait_seconds": "1"}
    chains = {ChainName.SOLANA: chain}
    app = build_app(database_url, settings=settings, chains=chains, public_upstream=upstream)
    with app.app_context():
        agent = register(app.test_client())
        fund_solana(node, agent.solana_address, sol=0, dollars=1)
        yield Buyer(agent, node)


@pytest.fixture
def buyer(build_app: Callable[..., Flask], sqlite_url: str, node: SolanaNode) -> Iterator[Buyer]:
    with buyer_on(build_app, sqlite_url, node, solana_chain(node)) as made:
        yield made


@pytest.fixture
def seller(node: SolanaNode) -> Iterator[SolanaSeller]:
    with solana_seller(node) as made:
        yield made


def set_dollars(buyer: Buyer, units: int) -> None:
    """Change a balance as nothing of ours can while a payment is pending."""
    owner, mint = Pubkey.from_string(buyer.agent.solana_address), Pubkey.from_string(MAINNET.usdc_mint)
    account = str(tokens.account_of(owner, mint))
    found = buyer.node.call("getAccountInfo", account, {"encoding": "base64"})["value"]
    data = bytearray(base64.b64decode(found["data"][0]))
    data[64:72] = units.to_bytes(8, "little")
    owner_program = Pubkey.from_string(found["owner"])
    buyer.node.set_account(account, Account(found["lamports"], bytes(data), owner_program))


def keep_silent(_seller: ScriptedSeller, exchange: Exchange, _payment: Mapping[str, Any]) -> None:
    exchange.json({"error": "later"}, 503)


def test_a_wallet_without_lamports_pays_and_the_outcome_is_what_the_chain_shows(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    payment = buyer.paid(seller.url + "/report")["payment"]
    assert (payment["chain"], payment["network"], payment["pay_to"]) == (
        "solana",
        "solana:sandbox",
        seller.offer()["payTo"],
    )
    partial = partial_transaction(decoded(seller.headers[0]))
    assert str(partial.message.account_keys[0]) == str(seller.sponsor.pubkey())
    assert [str(partial.message.account_keys[1])] == [buyer.agent.solana_address]
    assert len(partial.message.instructions) == 4
    row = buyer.row()
    assert (row["status"], row["tx_hash"]) == ("confirmed", payment["tx_hash"])
    buyer.node.advance(FINALIZED)
    buyer.run_workers()
    assert (buyer.row()["status"], buyer.dollars()) == ("confirmed", 10**6 - CENT)


def test_a_payment_that_no_one_completed_is_released_only_when_it_can_never_land(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    seller.behave = keep_silent
    url = seller.url + "/report"
    assert buyer.fetch(url).get_json()["payment"]["state"] == "pending"
    # Past the blockhash in a finalized block, but an index of addresses may be late.
    buyer.node.advance(400)
    buyer.run_workers(minutes=5)
    assert buyer.row()["status"] == "pending"
    buyer.node.advance(EXPIRED_SLOTS)
    buyer.run_workers(minutes=30)
    row = buyer.row()
    assert (row["status"], row["error"], buyer.agent.spent_this_month()) == ("failed", "expired", 0)
    assert buyer.fetch(url).get_json()["payment"]["state"] == "expired"
    assert len(set(seller.headers)) == 1


def test_a_payment_completed_without_an_answer_is_found_and_counted(buyer: Buyer, seller: SolanaSeller) -> None:
    def settle_and_hang_up(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        shop.settle(payment)
        exchange.hang_up()

    seller.behave = settle_and_hang_up
    payment = buyer.paid(seller.url + "/report")["payment"]
    seller.behave = serve
    again = buyer.fetch(seller.url + "/report").get_json()
    assert again["payment"]["tx_hash"] == payment["tx_hash"]
    assert (len(set(seller.headers)), buyer.dollars()) == (1, 10**6 - CENT)


def test_a_payment_completed_in_its_last_slot_is_paid_and_not_released(buyer: Buyer, seller: SolanaSeller) -> None:
    kept: list[Mapping[str, Any]] = []

    def keep(_shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        kept.append(payment)
        exchange.json({"error": "later"}, 503)

    seller.behave = keep
    buyer.fetch(seller.url + "/report")
    with read_only_unit() as session:
        [terms] = session.scalars(select(SignedAttempt.terms))
    height = buyer.node.call("getBlockHeight", {"commitment": "processed"})
    buyer.node.advance(terms["payment_last_height"] - height)
    blockhash = str(partial_transaction(kept[0]).message.recent_blockhash)
    assert buyer.node.call("isBlockhashValid", blockhash, {"commitment": "processed"})["value"]
    seller.settle(kept[0])
    assert not buyer.node.call("isBlockhashValid", blockhash, {"commitment": "processed"})["value"]
    buyer.node.advance(EXPIRED_SLOTS)
    buyer.run_workers(minutes=30)
    assert (buyer.row()["status"], buyer.agent.spent_this_month()) == ("confirmed", 0.01)


def test_a_payment_that_failed_on_the_chain_is_released(buyer: Buyer, seller: SolanaSeller) -> None:
    def empty_the_wallet_first(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        set_dollars(buyer, 0)
        shop.settle(payment)
        exchange.json({"error": "not paid"}, 402)

    seller.behave = empty_the_wallet_first
    buyer.fetch(seller.url + "/report")
    buyer.run_workers()
    row = buyer.row()
    assert (row["status"], row["error"], buyer.agent.spent_this_month()) == ("failed", "reverted", 0)


@pytest.mark.parametrize(
    ("party", "reason"), [("solana_address", "invalid_fee_payer"), ("token_account", "invalid_fee_payer")]
)
def test_a_party_of_the_payment_is_no_fee_payer(buyer: Buyer, seller: SolanaSeller, party: str, reason: str) -> None:
    mine = Pubkey.from_string(buyer.agent.solana_address)
    account = str(tokens.account_of(mine, Pubkey.from_string(MAINNET.usdc_mint)))
    parties = {"solana_address": str(mine), "token_account": account}
    seller.offer()["extra"]["feePayer"] = parties[party]
    refusal = buyer.refused(seller.url + "/report")
    assert (refusal["code"], refusal["reason"]) == ("PAYMENT_FAILED", reason)
    assert (seller.headers, buyer.agent.spent_this_month()) == ([], 0)


def test_what_cannot_be_received_or_completed_is_refused_before_it_is_signed(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    url, payee = seller.url + "/report", seller.offer()["payTo"]
    seller.offer()["payTo"] = str(Keypair().pubkey())
    assert buyer.refused(url)["reason"] == "recipient_cannot_receive"
    seller.offer()["payTo"] = payee
    seller.offer()["extra"]["feePayer"] = str(Keypair().pubkey())
    assert buyer.refused(url)["reason"] == "simulation_failed"
    for extra in ({}, {"feePayer": 5}, {"feePayer": "shop.sol"}, {"memo": "a" * 257}, {"memo": "\ud800"}):
        seller.offer()["extra"] = {"feePayer": payee, **extra} if "memo" in extra else extra
        assert buyer.refused(url)["code"] == "TERMS_NOT_SUPPORTED", extra
    assert (seller.headers, buyer.agent.spent_this_month()) == ([], 0)


def test_two_payments_with_the_memo_and_the_blockhash_of_each_other_are_both_paid(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    seller.offer()["extra"] |= {"memo": "order 5", "recentBlockhash": str(Keypair().pubkey())}
    seller.behave = keep_silent
    assert buyer.fetch(seller.url + "/a", key="a").status_code == 200
    assert buyer.fetch(seller.url + "/b", key="b").status_code == 200
    first, second = (partial_transaction(decoded(header)) for header in seller.headers)
    assert first.message.recent_blockhash == second.message.recent_blockhash
    assert bytes(first.message.instructions[3].data) == b"order 5"
    assert first.message != second.message


def test_dust_from_others_does_not_hide_a_payment(buyer: Buyer, seller: SolanaSeller) -> None:
    def send_dust_and_settle(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        for _ in range(20):
            buyer.node.airdrop(buyer.agent.solana_address, 10**6)
        serve(shop, exchange, payment)

    seller.behave = send_dust_and_settle
    buyer.paid(seller.url + "/report")
