"""Concurrent payouts and refunds of two processes: together they never take more than a service has earned."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from flask import Flask
from sqlalchemy import select

from app.catalog.payouts import destinations, earnings
from app.catalog.payouts import service as payouts
from app.core.chains import USDC, ChainName
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound
from app.payments import claimed_payments, treasury
from app.payments.models import Payment
from app.payments.treasury import WalletRole
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import fund, usdc
from tests.support.earned import SETTINGS, earn, receive
from tests.support.market import sell
from tests.support.operators import operator
from tests.support.processes import Asked, NodeAddress, Service, Tripwire, crowds
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chain, pytest.mark.postgres]
BASE = ChainName.BASE
CALLS, EACH = 12, 6


def opened(url: str, node: EvmNode, build_app: Callable[..., Flask]) -> tuple[Service, Flask]:
    """Return the service and an application of it, with a treasury that has dollars and no ether."""
    settings = {**SETTINGS, "log_level": "CRITICAL", "confirmation_wait_seconds": "5"}
    service = Service(url, (NodeAddress.of(node),), settings)
    app = build_app(url, settings=dict(settings), **service.parts(Tripwire()))
    with app.app_context():
        fund(node, treasury.settler(BASE), eth=1)
        fund(node, treasury.wallet(WalletRole.TREASURY, BASE).address_on(BASE), eth=0, dollars=50)
    return service, app


@pytest.mark.parametrize("refunded_calls", [0, EACH // 2])
def test_payouts_race_payouts_and_refunds_and_take_each_dollar_once(
    postgres_url: str, base_node: EvmNode, build_app: Callable[..., Flask], refunded_calls: int
) -> None:
    service, app = opened(postgres_url, base_node, build_app)
    with app.app_context():
        seller, buyer = register(app.test_client()), register(app.test_client())
        offered = sell(seller)["id"]
        calls = earn(offered, buyer.id, calls=CALLS)
        credits_before = credit_accounts_of(buyer.id)
    pay = [Asked("POST", f"/v1/services/{offered}/payouts", {}, seller.headers()) for _ in range(EACH)]
    refunds = [
        Asked("POST", f"/v1/services/{offered}/refunds", {"call_id": call_id}, seller.headers())
        # Each call is refunded by both processes.
        for call_id in calls[:refunded_calls]
    ]
    answers = crowds(service, pay[: EACH // 2] + refunds, pay[EACH // 2 :] + refunds)
    outcomes = Counter((status, body.get("code")) for status, body in answers)
    assert outcomes.keys() <= {(201, None), (409, "PAYOUT_REFUSED")}, outcomes
    made = [body for status, body in answers if status == 201]
    assert len({body["call_id"] for body in made if body["kind"] == "refund"}) == len(
        [body for body in made if body["kind"] == "refund"]
    )
    paid = sum(usdc(body["amount_usd"]) for body in made if body["kind"] == "payout")
    refunded = sum(usdc(body["amount_usd"]) for body in made if body["kind"] == "refund")
    # A refund in between changes what is payable: then the payout is refused, and can be requested again.
    assert paid or refunded
    assert len([body for body in made if body["kind"] == "payout"]) == 1 or refunded_calls
    with app.app_context():
        found = payouts.earnings_of(offered)
        assert found.unpaid_nanos >= 0
        assert (found.paid_nanos, found.refunded_nanos) == (paid * 1000, refunded * 1000)
        assert found.revenue_nanos == CALLS * 250_000_000
        assert credit_accounts_of(buyer.id) - credits_before == refunded * 1000
        with read_only_unit() as session:
            assert earnings.find_problems(session) == []
    chain = app.state.ports.chains[BASE].real
    wait_until(lambda: chain.balances(seller.address).of(USDC).units == paid, what="the seller has what was paid")


def credit_accounts_of(account_id: str) -> int:
    with read_only_unit() as session:
        return credit_accounts.balance(session, account_id).credits_nanos


def test_refunds_of_many_payers_race_for_what_one_call_has_earned(
    postgres_url: str, base_node: EvmNode, build_app: Callable[..., Flask]
) -> None:
    service, app = opened(postgres_url, base_node, build_app)
    with app.app_context():
        seller, *buyers = (register(app.test_client()) for _ in range(2 * EACH + 1))
        offered = sell(seller)["id"]
        calls = [earn(offered, buyer.id, calls=1)[0] for buyer in buyers]
        assert seller.post(f"/v1/services/{offered}/payouts", {}).status_code == 201
        earn(offered, buyers[0].id, calls=1)
    refunds = [
        Asked("POST", f"/v1/services/{offered}/refunds", {"call_id": call_id}, seller.headers()) for call_id in calls
    ]
    answers = crowds(service, refunds[:EACH], refunds[EACH:])
    assert sorted(status for status, _ in answers) == [201] + [409] * (2 * EACH - 1)
    with app.app_context(), read_only_unit() as session:
        assert earnings.read(session, offered).unpaid_nanos == 0
        assert earnings.find_problems(session) == []


@pytest.mark.parametrize("rival", ["refunds", "call", "reversal"])
def test_refunds_of_one_payment_race_each_other_a_call_and_its_reversal(
    postgres_url: str, base_node: EvmNode, build_app: Callable[..., Flask], rival: str
) -> None:
    service, app = opened(postgres_url, base_node, build_app)
    with app.app_context():
        payer, payment_id = receive(base_node)
        headers = operator(app.test_client()).headers()
    refund = Asked("POST", f"/v1/platform/payments/{payment_id}/refund", {}, headers)
    is_over = threading.Event()

    def compete() -> bool:
        """Use the payment, or reverse it, as soon as refunds have begun."""
        with app.app_context():
            wait_until(lambda: is_over.is_set() or signing(postgres_url), what="a refund is signed")
            with unit_of_work() as session:
                act = {"call": claimed_payments.start_attempt, "reversal": claimed_payments.mark_reversed}.get(rival)
                return act is not None and act(session, payment_id)

    with ThreadPoolExecutor(1) as threads:
        won = threads.submit(compete)
        answers = crowds(service, [refund] * EACH, [refund] * EACH)
        is_over.set()
        has_won = won.result(30)
    made = [body for status, body in answers if status == 201]
    others = {(status, body["code"]) for status, body in answers if status != 201}
    assert others <= {(409, "PAYOUT_REFUSED")}, others
    with app.app_context(), read_only_unit() as session:
        status = session.scalars(select(Payment.status)).one()
        assert earnings.find_problems(session) == []
    if rival == "call":
        assert (len(made), status) == ((0, "serving") if has_won else (1, "refunded"))
    else:
        # A reversal may follow a refund: the chain has decided that.
        assert (len(made), status) in {(1, "refunded"), (1, "reversed"), (0, "reversed")}
    chain = app.state.ports.chains[BASE].real
    wait_until(lambda: chain.balances(payer).of(USDC).units == usdc(len(made)), what="the payer has what was refunded")


def signing(url: str) -> bool:
    """Return whether a process waits for the lock that another holds while it signs."""
    with psycopg.connect(url.replace("+psycopg", "")) as outsider:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return bool(outsider.execute(waiting).fetchall())


def test_the_deletion_of_a_wallet_waits_for_the_payout_to_it_that_is_being_signed(
    postgres_url: str, base_node: EvmNode, build_app: Callable[..., Flask]
) -> None:
    _, app = opened(postgres_url, base_node, build_app)
    with app.app_context():
        seller = register(app.test_client())
        sell(seller)
        wallet_id = seller.post("/v1/wallets", {}).get_json()["id"]

    def delete() -> int:
        with app.app_context():
            return app.test_client().delete(f"/v1/wallets/{wallet_id}?force=true", headers=seller.headers()).status_code

    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    url = postgres_url.replace("+psycopg", "")
    with ThreadPoolExecutor(1) as threads, psycopg.connect(url, autocommit=True) as outsider, app.app_context():
        with unit_of_work() as session:
            destinations.lock_wallet(session, wallet_id, seller.id)
            deleted = threads.submit(delete)
            wait_until(lambda: outsider.execute(waiting).fetchall(), what="the deletion waits")
        assert deleted.result(30) == 200
        with pytest.raises(NotFound), unit_of_work() as session:
            destinations.lock_wallet(session, wallet_id, seller.id)
