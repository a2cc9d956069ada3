"""Payments to web services by Permit2: by x402's proxy only, with an allowance that ends with the payment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.contracts.calls import ALLOWANCE
from app.adapters.evm.contracts.deployments import PERMIT2, X402_PERMIT2_PROXY
from sandbox.evm import EvmNode
from tests.support.buyers import Buyer, buyer_on, keep, refused
from tests.support.drivers import evm_driver
from tests.support.payments import decoded
from tests.support.permit2 import settle_by_permit2
from tests.support.sellers import CENT, PAYEE, ScriptedSeller, published_seller, scripted_seller

pytestmark = pytest.mark.chain


@pytest.fixture
def buyer(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Buyer]:
    with buyer_on(build_app, sqlite_url, evm_driver(own_base_node)) as made:
        yield made


@pytest.fixture
def seller(own_base_node: EvmNode) -> Iterator[ScriptedSeller]:
    with scripted_seller(own_base_node) as made:
        made.offer()["extra"]["assetTransferMethod"] = "permit2"
        made.terms["extensions"] = {"eip2612GasSponsoring": {"info": {"version": "1"}}}
        yield made


def allowance(buyer: Buyer) -> int:
    data = "0x" + ALLOWANCE.encode(buyer.agent.address, PERMIT2).hex()
    return int(buyer.node.rpc("eth_call", {"to": buyer.node.deployment.usdc, "data": data}, "latest"), 16)


def test_a_published_seller_is_paid_once_and_no_allowance_is_left(buyer: Buyer) -> None:
    with published_seller(buyer.node, by_permit2=True) as shop:
        body = buyer.fetch(shop.url + "/report", key="once").get_json()
        assert (body["status"], body["payment"]["state"]) == (200, "paid"), body
        assert buyer.fetch(shop.url + "/report", key="once").get_json() == body
        assert shop.served == ["report"]
    row = buyer.row()
    assert (row["status"], row["tx_hash"]) == ("confirmed", body["payment"]["tx_hash"])
    assert (row["to_address"], allowance(buyer), buyer.spent()) == (PAYEE, 0, 0.01)


def test_only_the_amount_is_signed_for_the_recipient_and_the_proxy(buyer: Buyer, seller: ScriptedSeller) -> None:
    kept: list[Mapping[str, Any]] = []
    seller.behave = keep(kept)
    buyer.fetch(seller.url + "/report", wait=1)
    signed = kept[0]["payload"]["permit2Authorization"]
    assert (signed["spender"], signed["witness"]["to"]) == (X402_PERMIT2_PROXY, PAYEE)
    assert signed["permitted"] == {"token": buyer.node.deployment.usdc, "amount": str(CENT)}
    sponsored = decoded(seller.headers[0])["extensions"]["eip2612GasSponsoring"]["info"]
    assert (sponsored["spender"], sponsored["amount"]) == (PERMIT2, str(CENT))


def test_two_equal_payments_are_each_found_by_their_own_nonce(buyer: Buyer, seller: ScriptedSeller) -> None:
    kept: list[Mapping[str, Any]] = []
    seller.behave = keep(kept)
    for key in ("a", "b"):
        assert buyer.payment(seller.url + "/report", key=key, wait=1)["state"] == "pending"
    tx_hash = settle_by_permit2(buyer.node, kept[1])
    buyer.run_workers()
    rows = {row["status"]: row for row in buyer.agent.history()}
    assert rows["confirmed"]["tx_hash"] == tx_hash
    # Its allowance was numbered like the other's, so that it cannot be used any more.
    buyer.expire()
    buyer.run_workers(minutes=60)
    assert sorted(row["status"] for row in buyer.agent.history()) == ["confirmed", "failed"]
    assert buyer.spent() == 0.01


def test_a_seller_that_does_not_submit_the_allowance_is_not_paid(buyer: Buyer, seller: ScriptedSeller) -> None:
    for extensions in ({}, {"other": 5}, {"eip2612GasSponsoring": "yes"}):
        seller.terms["extensions"] = extensions
        details = refused(buyer.fetch(seller.url + "/report"), "PAYMENT_FAILED")["details"]
        assert details["reason"] == "permit2_allowance_missing"
    assert (seller.headers, buyer.spent()) == ([], 0)


def test_the_token_itself_is_preferred(buyer: Buyer, seller: ScriptedSeller) -> None:
    extra = {"name": seller.offer()["extra"]["name"], "version": "2"}
    seller.terms["accepts"].append({**seller.offer(), "extra": extra})
    assert buyer.payment(seller.url + "/report")["state"] == "paid"
    assert "authorization" in decoded(seller.headers[0])["payload"]
