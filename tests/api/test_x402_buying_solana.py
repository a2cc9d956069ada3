"""Payments to web services on Solana: the seller's fee payer completes them, and the wallet's history shows it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.adapters.solana.send import tokens
from tests.support.buyers import Buyer, buyer_on, keep
from tests.support.drivers import SolanaDriver, solana_driver
from tests.support.payments import decoded
from tests.support.sellers import CENT, ScriptedSeller, serve
from tests.support.solana import FINALIZED
from tests.support.solana_sellers import MAINNET, SolanaSeller, partial_transaction, solana_seller
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain


@pytest.fixture
def driver() -> Iterator[SolanaDriver]:
    with solana_driver(slot_ms=0) as made:
        made.node.advance(100)
        yield made


@pytest.fixture
def buyer(build_app: Callable[..., Flask], sqlite_url: str, driver: SolanaDriver) -> Iterator[Buyer]:
    with buyer_on(build_app, sqlite_url, driver) as made:
        yield made


@pytest.fixture
def seller(driver: SolanaDriver) -> Iterator[SolanaSeller]:
    with solana_seller(driver.node) as made:
        yield made


def refusal(buyer: Buyer, seller: SolanaSeller) -> Mapping[str, Any]:
    body: dict[str, Any] = buyer.fetch(seller.url + "/report").get_json()
    return {"code": body["code"], **body["details"]}


def set_dollars(buyer: Buyer, units: int) -> None:
    """Change a balance as nothing of ours can while a payment is pending."""
    owner, mint = Pubkey.from_string(buyer.agent.solana_address), Pubkey.from_string(MAINNET.usdc_mint)
    account = str(tokens.account_of(owner, mint))
    found = buyer.node.call("getAccountInfo", account, {"encoding": "base64"})["value"]
    data = bytearray(base64.b64decode(found["data"][0]))
    data[64:72] = units.to_bytes(8, "little")
    owner_program = Pubkey.from_string(found["owner"])
    buyer.node.set_account(account, Account(found["lamports"], bytes(data), owner_program))


def test_a_wallet_without_lamports_pays_and_the_outcome_is_what_the_chain_shows(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    payment, payee = buyer.payment(seller.url + "/report"), seller.offer()["payTo"]
    assert payment["state"] == "paid"
    assert (payment["chain"], payment["network"], payment["pay_to"]) == ("solana", "solana:sandbox", payee)
    partial = partial_transaction(decoded(seller.headers[0]))
    assert str(partial.message.account_keys[0]) == str(seller.sponsor.pubkey())
    assert [str(partial.message.account_keys[1])] == [buyer.agent.solana_address]
    assert len(partial.message.instructions) == 4
    row = buyer.row()
    assert (row["status"], row["tx_hash"]) == ("confirmed", payment["tx_hash"])
    buyer.node.advance(FINALIZED)
    buyer.run_workers()
    assert (buyer.row()["status"], buyer.dollars()) == ("confirmed", 10**6 - CENT)


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
    found = refusal(buyer, seller)
    assert (found["code"], found["reason"]) == ("PAYMENT_FAILED", reason)
    assert (seller.headers, buyer.agent.spent_this_month()) == ([], 0)


def test_what_cannot_be_received_or_completed_is_refused_before_it_is_signed(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    payee = seller.offer()["payTo"]
    seller.offer()["payTo"] = str(Keypair().pubkey())
    assert refusal(buyer, seller)["reason"] == "recipient_cannot_receive"
    seller.offer()["payTo"] = payee
    seller.offer()["extra"]["feePayer"] = str(Keypair().pubkey())
    assert refusal(buyer, seller)["reason"] == "simulation_failed"
    for extra in ({}, {"feePayer": 5}, {"feePayer": "shop.sol"}, {"memo": "a" * 257}, {"memo": "\ud800"}):
        seller.offer()["extra"] = {"feePayer": payee, **extra} if "memo" in extra else extra
        assert refusal(buyer, seller)["code"] == "TERMS_NOT_SUPPORTED", extra
    assert (seller.headers, buyer.agent.spent_this_month()) == ([], 0)


def test_two_payments_with_the_memo_and_the_blockhash_of_each_other_are_both_paid(
    buyer: Buyer, seller: SolanaSeller
) -> None:
    seller.offer()["extra"] |= {"memo": "order 5", "recentBlockhash": str(Keypair().pubkey())}
    seller.behave = keep([])
    assert buyer.fetch(seller.url + "/a", key="a", wait=1).status_code == 200
    assert buyer.fetch(seller.url + "/b", key="b", wait=1).status_code == 200
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
    assert buyer.payment(seller.url + "/report")["state"] == "paid"
