"""Payments to web services on each chain, by each way to sign them: paid at most once, and held until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select

from app.db.unit_of_work import read_only_unit
from app.wallets.core.models import SignedAttempt
from sandbox.evm import EvmNode
from tests.support.buyers import Buyer, buyer_on, keep, seller_on, settle_and_hang_up
from tests.support.drivers import SolanaDriver, evm_driver, solana_driver
from tests.support.mpp import mpp_seller
from tests.support.permit2 import settle_by_permit2
from tests.support.sellers import CENT, ScriptedSeller
from tests.support.solana_sellers import partial_transaction

pytestmark = pytest.mark.chain
Payment = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sale:
    """A buyer, a seller on the same chain, and how a payment is used in the last moment that it can be."""

    buyer: Buyer
    seller: ScriptedSeller
    use_at_the_last_moment: Callable[[Buyer, ScriptedSeller, Payment], object]

    @property
    def url(self) -> str:
        return self.seller.url + "/report"


def in_the_last_second(buyer: Buyer, seller: ScriptedSeller, payment: Payment) -> None:
    deadline = int(payment["payload"]["authorization"]["validBefore"])
    buyer.node.rpc("evm_setNextBlockTimestamp", deadline - 1)
    seller.settle(payment)


def by_permit2(buyer: Buyer, _seller: ScriptedSeller, payment: Payment) -> None:
    buyer.node.rpc("evm_setNextBlockTimestamp", int(payment["payload"]["permit2Authorization"]["deadline"]))
    settle_by_permit2(buyer.node, payment)


def in_the_last_slot(buyer: Buyer, seller: ScriptedSeller, payment: Payment) -> None:
    def is_valid() -> bool:
        blockhash = str(partial_transaction(payment).message.recent_blockhash)
        return bool(buyer.node.call("isBlockhashValid", blockhash, {"commitment": "processed"})["value"])

    with read_only_unit() as session:
        [terms] = session.scalars(select(SignedAttempt.terms))
    buyer.node.advance(terms["payment_last_height"] - buyer.node.call("getBlockHeight", {"commitment": "processed"}))
    assert is_valid()
    seller.settle(payment)
    assert not is_valid()


_LAST = {"base": in_the_last_second, "mpp": in_the_last_second, "permit2": by_permit2, "solana": in_the_last_slot}


@pytest.fixture(params=["base", "mpp", "solana"])
def sale(
    request: pytest.FixtureRequest, build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> Iterator[Sale]:
    with solana_driver(slot_ms=0) as on_solana:
        on_solana.node.advance(100)
        driver = on_solana if request.param == "solana" else evm_driver(own_base_node)
        with (
            buyer_on(build_app, sqlite_url, driver) as buyer,
            mpp_seller(own_base_node) if request.param == "mpp" else seller_on(driver) as seller,
        ):
            if request.param == "permit2":
                seller.offer()["extra"]["assetTransferMethod"] = "permit2"
                seller.terms["extensions"] = {"eip2612GasSponsoring": {"info": {"version": "1"}}}
            yield Sale(buyer, seller, _LAST[request.param])


def test_a_seller_that_settles_and_hangs_up_is_not_paid_again(sale: Sale) -> None:
    buyer, seller = sale.buyer, sale.seller
    seller.behave = settle_and_hang_up
    first = buyer.fetch(sale.url, key="once").get_json()
    assert (first["status"], first["payment"]["state"]) == (None, "paid")
    # The seller knows the payment, and answers it.
    seller.behave = lambda _shop, exchange, _payment: exchange.json({"report": "sunny"})
    again = buyer.fetch(sale.url, key="once").get_json()
    assert (again["status"], again["payment"]) == (200, first["payment"])
    assert buyer.fetch(sale.url, key="once").get_json() == again
    assert len(seller.headers) == 2
    assert len(set(seller.headers)) == 1
    assert (buyer.dollars(), buyer.spent()) == (10**6 - CENT, 0.01)


def test_a_payment_that_is_never_used_is_held_until_it_certainly_never_will_be(sale: Sale) -> None:
    buyer, seller = sale.buyer, sale.seller
    seller.behave = keep([])
    first = buyer.fetch(sale.url, key="once", wait=1, max_amount_usd=1).get_json()
    assert (first["status"], first["payment"]["state"], buyer.spent()) == (503, "pending", 0.01)
    # Past its deadline by our clock, then by the newest block's, but not by a finalized one's.
    if not isinstance(buyer.driver, SolanaDriver):
        buyer.run_workers(minutes=30)
    buyer.driver.nearly_expire()
    buyer.run_workers(minutes=40)
    assert (buyer.row()["status"], buyer.spent()) == ("pending", 0.01)
    buyer.expire()
    buyer.run_workers(minutes=60)
    row = buyer.row()
    assert (row["status"], row["error"], buyer.spent()) == ("failed", "expired", 0)
    again = buyer.fetch(sale.url, key="once", max_amount_usd=1).get_json()
    assert (again["status"], again["payment"]["state"], len(seller.headers)) == (None, "expired", 1)


@pytest.mark.parametrize("sale", _LAST, indirect=True)
def test_a_payment_used_at_the_last_moment_is_paid_and_not_released(sale: Sale) -> None:
    kept: list[Payment] = []
    sale.seller.behave = keep(kept)
    assert sale.buyer.payment(sale.url, key="once", wait=1)["state"] == "pending"
    sale.use_at_the_last_moment(sale.buyer, sale.seller, kept[0])
    sale.buyer.expire()
    sale.buyer.run_workers(minutes=60)
    assert (sale.buyer.row()["status"], sale.buyer.spent()) == ("confirmed", 0.01)
