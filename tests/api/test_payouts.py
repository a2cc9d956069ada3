"""Payouts of earnings and refunds of calls: each paid at most once, and never more than a service has earned."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import time_machine
from eth_utils import to_checksum_address
from flask import Flask
from sqlalchemy import select, update
from sqlalchemy.orm import make_transient

from app.approvals import service as approvals
from app.approvals.service import OwnerMethod
from app.catalog.models import Payout
from app.catalog.payouts import earnings
from app.catalog.payouts import service as payouts
from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import claimed_payments, treasury
from app.payments.settlement_capacity import SettlementCapacityCache
from app.payments.treasury import WalletRole
from app.ports.errors import OutcomeUnknown, Unreachable
from app.state import app_state
from app.wallets.core.models import SignedAttempt
from sandbox.evm import EvmNode
from tests.support.chains import evm_chain, fund, usdc
from tests.support.drivers import fresh_address
from tests.support.faults import FaultyChain
from tests.support.market import Market, market, sell
from tests.support.operators import operator as operator_with
from tests.support.owners import person
from tests.support.payments import EvmPayer
from workers import confirmations, sweeps
from workers.approvals import execute as execute_approvals

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
PRICE = 0.25
SETTINGS = {
    "payouts_enabled": "1", "payout_minimum_usd": "0.1", "payout_holding_hours": "0", "payout_commission_bps": "1000",
    "confirmation_wait_seconds": "5",
}  # fmt: skip


@pytest.fixture
def chain(own_base_node: EvmNode) -> FaultyChain:
    return FaultyChain(evm_chain(own_base_node))


def opened(
    build_app: Callable[..., Flask], url: str, node: EvmNode, chain: FaultyChain, *, dollars: float = 50, **more: Any
) -> Any:
    return _open(build_app, url, node, chain, dollars=dollars, settings={**SETTINGS, **more})


@pytest.fixture
def stage(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> Iterator[Market]:
    yield from _open(build_app, sqlite_url, own_base_node, chain, dollars=50, settings=SETTINGS)


def _open(
    build_app: Callable[..., Flask], url: str, node: EvmNode, chain: FaultyChain, *, dollars: float,
    settings: dict[str, Any],
) -> Iterator[Market]:  # fmt: skip
    with market(build_app, url, chains={BASE: chain}, **settings) as made:
        fund(node, treasury.settler(BASE), eth=1)
        fund(node, treasury_address(), eth=0, dollars=dollars)
        app_state().part(SettlementCapacityCache).clear()
        made.behave(lambda exchange: exchange.json({"weather": "sunny"}))
        yield made


def treasury_address() -> str:
    return treasury.wallet(WalletRole.TREASURY, BASE).address_on(BASE)


def held(chain: FaultyChain, address: str) -> int:
    return chain.real.balances(address).of(USDC).units


def earn(stage: Market, calls: int) -> list[str]:
    """Call the service, and return the ids of the calls."""
    return [stage.call().headers["X-Request-Id"] for _ in range(calls)]


def request(stage: Market, body: object = None, **headers: str) -> Any:
    return stage.seller.post(f"/v1/services/{stage.id}/payouts", body or {}, **headers)


def refund(stage: Market, call_id: str, **body: Any) -> Any:
    return stage.seller.post(f"/v1/services/{stage.id}/refunds", {"call_id": call_id, **body})


def statement(stage: Market) -> dict[str, Any]:
    found: dict[str, Any] = stage.seller.get(f"/v1/services/{stage.id}/payouts").get_json()
    return found


def reason(answer: Any) -> str:
    assert answer.status_code == 409, answer.get_json()
    assert answer.get_json()["code"] == "PAYOUT_REFUSED"
    return str(answer.get_json()["details"]["reason"])


def look(node: EvmNode, *, minutes: int = 2, times: int = 3) -> None:
    """Let workers settle what is pending, with blocks that are final."""
    node.mine(80)
    for number in range(1, times + 1):
        with time_machine.travel(clock.now() + timedelta(minutes=minutes * number), tick=True):
            confirmations.confirm("base")


def assert_books_agree(stage: Market) -> None:
    found = statement(stage)["earnings"]
    nanos = {name: round(value * 10**9) for name, value in found.items()}
    assert nanos["revenue_usd"] == sum(
        nanos[f"{name}_usd"] for name in ("paid", "commission", "refunded", "unpaid")
    )  # fmt: skip
    with read_only_unit() as session:
        assert earnings.find_problems(session) == []


def test_a_seller_gets_what_was_earned_less_commission_from_a_treasury_without_ether(
    stage: Market, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    earn(stage, 4)
    before = held(chain, treasury_address())
    answer = request(stage)
    body = answer.get_json()
    assert (answer.status_code, body["status"]) == (201, "paid"), body
    assert (body["amount_usd"], body["commission_usd"], body["kind"]) == (0.9, 0.1, "payout")
    assert body["to"] == stage.seller.address
    assert held(chain, stage.seller.address) == usdc(0.9)
    assert before - held(chain, treasury_address()) == usdc(0.9)
    assert statement(stage)["earnings"] == {
        "revenue_usd": 1.0, "paid_usd": 0.9, "commission_usd": 0.1, "refunded_usd": 0.0, "unpaid_usd": 0.0,
        "held_usd": 0.0, "payable_usd": 0.0,
    }  # fmt: skip
    assert reason(request(stage)) == "below_minimum"
    look(own_base_node)
    [row] = statement(stage)["payouts"]
    assert row["closed_at"] is not None
    assert row["tx_hash"]
    assert_books_agree(stage)


def test_a_repeated_request_pays_once(stage: Market, chain: FaultyChain) -> None:
    earn(stage, 2)
    first, again = (request(stage, Idempotency_Key="payout-1") for _ in range(2))
    assert first.get_json() == again.get_json()
    earn(stage, 2)
    assert request(stage, Idempotency_Key="payout-1").get_json()["id"] == first.get_json()["id"]
    assert held(chain, stage.seller.address) == usdc(0.45)


def test_the_service_of_another_seller_is_neither_shown_nor_paid(stage: Market) -> None:
    calls = earn(stage, 2)
    other = stage.buyer
    assert other.get(f"/v1/services/{stage.id}/payouts").status_code == 404
    assert other.post(f"/v1/services/{stage.id}/payouts", {}).status_code == 404
    assert other.post(f"/v1/services/{stage.id}/refunds", {"call_id": calls[0]}).status_code == 404
    own = sell(other)["id"]
    assert other.post(f"/v1/services/{own}/refunds", {"call_id": calls[0]}).status_code == 404


def test_recent_earnings_are_held_and_can_be_refunded(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> None:
    for stage in opened(build_app, sqlite_url, own_base_node, chain, payout_holding_hours="48"):
        calls = earn(stage, 4)
        assert statement(stage)["earnings"]["held_usd"] == 1.0
        assert reason(request(stage)) == "below_minimum"
        assert refund(stage, calls[0]).status_code == 201
        with time_machine.travel(clock.now() + timedelta(hours=47), tick=True):
            sweeps.sweep()
            assert reason(request(stage)) == "below_minimum"
        with time_machine.travel(clock.now() + timedelta(hours=49), tick=True):
            assert request(stage).get_json()["amount_usd"] == 0.675
        assert_books_agree(stage)


def test_less_than_the_minimum_is_not_paid(stage: Market) -> None:
    assert reason(request(stage)) == "below_minimum"
    assert statement(stage)["payouts"] == []


def test_nothing_is_paid_while_payouts_are_off(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> None:
    for stage in opened(build_app, sqlite_url, own_base_node, chain, payouts_enabled="0"):
        call_id, _ = earn(stage, 2)
        assert reason(request(stage)) == "not_offered"
        assert refund(stage, call_id).status_code == 201


def test_a_paused_service_of_a_suspected_seller_is_not_paid(stage: Market) -> None:
    earn(stage, 2)
    assert operator_with(stage.app.test_client()).post(f"/services/{stage.id}/pause").status_code == 200
    assert reason(request(stage)) == "service_paused"


def test_the_earnings_of_a_retired_service_remain_its_sellers(stage: Market) -> None:
    earn(stage, 2)
    stage.seller.delete(f"/v1/services/{stage.id}")
    assert request(stage).get_json()["status"] == "paid"


def test_earnings_go_to_an_address_only_if_the_wallet_may_pay_it(stage: Market, chain: FaultyChain) -> None:
    earn(stage, 2)
    outside, allowed = fresh_address(), fresh_address()
    stage.seller.controls(allowed_addresses=[allowed])
    assert request(stage, {"address": outside}).get_json()["code"] == "ADDRESS_NOT_ALLOWED"
    assert request(stage, {"address": "0x123"}).status_code == 400
    assert request(stage, {"address": allowed, "chain": "solana"}).status_code == 400
    assert request(stage, {"wallet_id": stage.buyer.wallet_id}).status_code == 404
    assert request(stage, {"address": treasury_address()}).get_json()["code"] == "ADDRESS_NOT_ALLOWED"
    assert request(stage, {"address": allowed}).get_json()["to"].lower() == allowed.lower()
    assert held(chain, allowed) == usdc(0.45)


def test_a_treasury_that_holds_too_little_pays_nothing_and_tells_no_balance(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> None:
    for stage in opened(build_app, sqlite_url, own_base_node, chain, dollars=0.1):
        earn(stage, 2)
        answer = request(stage, Idempotency_Key="one")
        assert (answer.status_code, answer.get_json()["code"]) == (500, "PAYOUT_FAILED")
        assert answer.get_json()["details"]["reason"] == "treasury_short"
        assert "0.1" not in answer.get_data(as_text=True)
        assert statement(stage)["earnings"]["payable_usd"] == 0.45
        fund(own_base_node, treasury_address(), eth=0, dollars=1)
        assert request(stage).get_json()["status"] == "paid"


@pytest.mark.parametrize("error", [Unreachable("refused"), OutcomeUnknown("timeout")], ids=["unsent", "unknown"])
def test_a_payout_with_an_unknown_outcome_is_pending_and_sent_again_never_signed_again(
    stage: Market, chain: FaultyChain, own_base_node: EvmNode, error: Exception
) -> None:
    earn(stage, 2)
    chain.raising("broadcast", "before", error)
    answer = request(stage, Prefer="respond-async")
    assert answer.get_json()["status"] == "pending"
    # What is pending counts.
    assert reason(request(stage)) == "below_minimum"
    with read_only_unit() as session:
        signed = session.scalars(select(SignedAttempt.tx_hash)).all()
    look(own_base_node)
    assert statement(stage)["payouts"][0]["status"] == "paid"
    assert held(chain, stage.seller.address) == usdc(0.45)
    with read_only_unit() as session:
        assert session.scalars(select(SignedAttempt.tx_hash)).all() == signed
    assert_books_agree(stage)


def test_a_refund_in_credits_returns_what_was_paid_once(stage: Market) -> None:
    first, second = earn(stage, 2)
    spent = stage.spent_nanos()
    before = stage.buyer.get("/v1/balance").get_json()["credits_usd"]
    answer = refund(stage, first)
    assert answer.status_code == 201, answer.get_json()
    assert (answer.get_json()["status"], answer.get_json()["chain"], answer.get_json()["to"]) == ("paid", None, None)
    assert reason(refund(stage, first)) == "refunded_before"
    assert refund(stage, second, amount_usd=0.1).get_json()["amount_usd"] == 0.1
    assert reason(refund(stage, second, amount_usd=0.1)) == "refunded_before"
    assert stage.buyer.get("/v1/balance").get_json()["credits_usd"] == pytest.approx(before + 0.35)
    assert stage.spent_nanos() == spent
    found = statement(stage)["earnings"]
    assert (found["refunded_usd"], found["unpaid_usd"], found["payable_usd"]) == (0.35, 0.15, 0.135)
    assert_books_agree(stage)


@pytest.mark.parametrize("amount", [0, 0.26, 1000])
def test_no_more_is_refunded_than_a_call_cost(stage: Market, amount: float) -> None:
    [call_id] = earn(stage, 1)
    assert refund(stage, call_id, amount_usd=amount).status_code == 400
    assert refund(stage, new_id()).status_code == 404
    assert refund(stage, "nothing").status_code == 404


def test_what_was_paid_out_is_not_refunded_from_the_treasury(stage: Market) -> None:
    first, _ = earn(stage, 2)
    assert request(stage).status_code == 201
    assert reason(refund(stage, first)) == "earnings_exceeded"
    earn(stage, 1)
    assert refund(stage, first).status_code == 201
    assert_books_agree(stage)


def test_a_call_without_an_account_is_refunded_to_the_address_that_paid(
    stage: Market, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    payer = EvmPayer(own_base_node)
    path = f"/v1/x402/services/{stage.id}/weather/Berlin"
    client = stage.app.test_client()
    asked = client.get(path)
    assert client.get(path, headers=payer.pays(asked)).status_code == 200
    with read_only_unit() as session:
        payment_id = session.scalars(select(claimed_payments.Payment.id)).one()
    assert held(chain, payer.address) == usdc(0.75)
    look(own_base_node)
    answer = refund(stage, payment_id)
    body = answer.get_json()
    assert (answer.status_code, body["status"], body["kind"], body["to"]) == (201, "paid", "refund", payer.address)
    assert held(chain, payer.address) == usdc(1)
    assert reason(refund(stage, payment_id)) == "refunded_before"
    look(own_base_node)
    assert_books_agree(stage)


def test_the_operator_refunds_and_sees_all(stage: Market) -> None:
    [call_id] = earn(stage, 1)
    operator = operator_with(stage.app.test_client())
    answer = operator.post(f"/services/{stage.id}/refunds", {"call_id": call_id})
    assert answer.status_code == 201, answer.get_json()
    assert stage.buyer.post(f"/v1/platform/services/{stage.id}/refunds", {"call_id": call_id}).status_code == 401
    for query, number in (("", 1), (f"?service_id={stage.id}", 1), (f"?service_id={new_id()}", 0)):
        page = operator.get(f"/payouts{query}").get_json()
        assert len(page["payouts"]) == number
    entries = operator.get("/audit?action=service.call_refunded").get_json()["entries"]
    assert [entry["after"]["call_id"] for entry in entries] == [call_id]


def test_the_statement_is_csv_and_events_tell_each_step(stage: Market) -> None:
    first, *_ = earn(stage, 4)
    refund(stage, first)
    request(stage)
    text = stage.seller.client.get(
        f"/v1/services/{stage.id}/payouts", headers=stage.seller.headers(Accept="text/csv")
    ).get_data(as_text=True)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["kind"], row["amount_usd"], row["status"]) for row in rows] == [
        ("payout", "0.675", "paid"), ("refund", "0.25", "paid"),
    ]  # fmt: skip
    types = [each["type"] for each in stage.seller.get("/v1/events").get_json()["events"]]
    assert [each for each in types if each.startswith(("payout", "refund"))] == [
        "refund.paid", "payout.pending", "payout.paid",
    ]  # fmt: skip
    received = [each["type"] for each in stage.buyer.get("/v1/events").get_json()["events"]]
    assert "refund.received" in received


def test_the_schedule_pays_once_a_period_what_is_above_the_minimum(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> None:
    for stage in opened(build_app, sqlite_url, own_base_node, chain, payout_schedule_days="7"):
        payouts.pay_scheduled()
        assert statement(stage)["payouts"] == []
        earn(stage, 2)
        for hours in (1, 2, 24 * 6):
            with time_machine.travel(clock.now() + timedelta(hours=hours), tick=True):
                earn(stage, 1)
                payouts.pay_scheduled()
        assert [row["amount_usd"] for row in statement(stage)["payouts"]] == [0.675]
        with time_machine.travel(clock.now() + timedelta(days=8), tick=True):
            payouts.pay_scheduled()
        look(own_base_node)
        assert held(chain, stage.seller.address) == usdc(0.675 + 0.45)
        assert_books_agree(stage)


def test_the_schedule_begins_nothing_in_a_maintenance(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for stage in opened(build_app, sqlite_url, own_base_node, chain, payout_schedule_days="7"):
        earn(stage, 2)
        with monkeypatch.context() as during:
            during.setitem(app_state().settings.__dict__, "maintenance", "on")
            payouts.pay_scheduled()
        assert statement(stage)["payouts"] == []
        payouts.pay_scheduled()
        assert len(statement(stage)["payouts"]) == 1


def test_after_a_restore_nothing_is_paid_until_the_operator_has_checked(stage: Market) -> None:
    earn(stage, 2)
    with unit_of_work() as session:
        claimed_payments.set_restore_cutoff(session, clock.now())
    assert reason(request(stage)) == "database_restored"


@pytest.mark.parametrize(
    ("nanos", "bps"), [(1_000_000_001, 1), (999, 0), (1_234_567_891, 333), (10**9, 9000), (0, 500), (-5, 100)]
)
def test_paid_and_commission_never_exceed_what_is_available(nanos: int, bps: int) -> None:
    paid = earnings.payable_of(nanos, bps)
    commission = earnings.commission_of(paid, bps)
    assert paid % 1000 == 0
    assert 0 <= paid + commission <= max(nanos, 0)
    # The commission is rounded down, and less than a base unit with its commission is left.
    assert commission * 10_000 <= (paid + commission) * bps
    assert max(nanos, 0) - paid - commission <= 1000 * 10_000 // (10_000 - bps) + 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        # Its transaction and its entry in the audit log.
        ({"amount_nanos": 1000}, 2), ({"status": "failed"}, 1), ({"recipient": "0x" + "0" * 40}, 1),
        ({"commission_nanos": 0}, 1), ({"service_id": str(UUID(int=45))}, 2),
    ],
    ids=str,
)  # fmt: skip
def test_the_audit_finds_a_payout_that_was_changed(
    stage: Market, own_base_node: EvmNode, change: Any, found: int
) -> None:
    earn(stage, 2)
    payout_id = request(stage).get_json()["id"]
    look(own_base_node)
    with read_only_unit() as session:
        before = {name: getattr(session.get_one(Payout, payout_id), name) for name in change}
        assert earnings.find_problems(session) == []
    for values, problems in ((change, found), (before, 0)):
        with unit_of_work() as session:
            session.execute(update(Payout).where(Payout.id == payout_id).values(values))
        with read_only_unit() as session:
            assert len(earnings.find_problems(session)) == problems


def test_the_audit_finds_a_payout_that_was_removed(stage: Market, own_base_node: EvmNode) -> None:
    earn(stage, 2)
    request(stage)
    look(own_base_node)
    with unit_of_work() as session:
        row = session.scalars(select(Payout)).one()
        session.delete(row)
    with read_only_unit() as session:
        # Its transaction and its entry in the audit log have no payout.
        assert len(earnings.find_problems(session)) == 2
    with unit_of_work() as session:
        make_transient(row)
        session.add(row)


@pytest.mark.parametrize(("hours", "problems"), [(23, 0), (25, 1)])
def test_the_audit_knows_which_reversals_a_payout_could_not_know(
    stage: Market, own_base_node: EvmNode, hours: int, problems: int
) -> None:
    _, payment_id = pay_without_account(stage, own_base_node)
    earn(stage, 1)
    look(own_base_node)
    assert request(stage).get_json()["amount_usd"] == 0.45
    for made_at, reversed_at, number in ((timedelta(hours=hours), True, problems), (timedelta(0), False, 0)):
        with unit_of_work() as session:
            created_at = clock.now() - made_at
            of_payment = update(claimed_payments.Payment).where(claimed_payments.Payment.id == payment_id)
            status = "reversed" if reversed_at else "served"
            session.execute(of_payment.values(created_at=created_at, status=status))
        with read_only_unit() as session:
            assert len(earnings.find_problems(session)) == number


def test_operators_see_what_the_treasury_holds_and_owes(stage: Market, own_base_node: EvmNode) -> None:
    earn(stage, 4)

    def measured() -> dict[str, float]:
        text = stage.app.test_client().get("/metrics").get_data(as_text=True)
        found = re.findall(r'purser_treasury_usd{which="(\w+)"} (\S+)', text)
        return {which: float(value) for which, value in found}

    sweeps.sweep()
    assert measured() == {"owed": 0.9, "balance": 50.0}
    own_base_node.set_automine(on=False)
    request(stage, Prefer="respond-async")
    # What is on its way is owed.
    assert measured()["owed"] == 0.9
    own_base_node.set_automine(on=True)
    look(own_base_node)
    assert measured()["owed"] == 0.0


def test_a_payout_that_can_never_land_is_payable_again_and_one_that_still_can_is_not(
    stage: Market, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    earn(stage, 2)
    chain.raising("broadcast", "before", Unreachable("node_down"))
    chain.raising("rebroadcast", "before", Unreachable("node_down"), times=100)
    first = request(stage, Prefer="respond-async").get_json()
    own_base_node.rpc("evm_increaseTime", 700)
    own_base_node.mine(1)
    with time_machine.travel(clock.now() + timedelta(minutes=20), tick=True):
        confirmations.confirm("base")
    # A reorganisation could still put it into a block from before its end.
    assert reason(request(stage)) == "below_minimum"
    own_base_node.rpc("evm_increaseTime", 700)
    look(own_base_node, minutes=40)
    assert [row["status"] for row in statement(stage)["payouts"]] == ["failed"]
    assert statement(stage)["earnings"]["payable_usd"] == 0.45
    # The clock of the node is ahead.
    with time_machine.travel(clock.now() + timedelta(minutes=25), tick=True):
        second = request(stage).get_json()
    assert (second["status"], second["id"] == first["id"]) == ("paid", False)
    assert held(chain, stage.seller.address) == usdc(0.45)
    types = [each["type"] for each in stage.seller.get("/v1/events").get_json()["events"]]
    assert [each for each in types if each.startswith("payout")].count("payout.failed") == 1
    assert_books_agree(stage)


def pay_without_account(stage: Market, node: EvmNode) -> tuple[EvmPayer, str]:
    """Call the service with a signed payment; return the payer and the payment's id."""
    payer = EvmPayer(node)
    path = f"/v1/x402/services/{stage.id}/weather/Berlin"
    client = stage.app.test_client()
    assert client.get(path, headers=payer.pays(client.get(path))).status_code == 200
    with read_only_unit() as session:
        return payer, session.scalars(select(claimed_payments.Payment.id)).one()


def test_a_payment_that_the_chain_reversed_is_no_revenue(stage: Market, own_base_node: EvmNode) -> None:
    _, payment_id = pay_without_account(stage, own_base_node)
    earn(stage, 1)
    with unit_of_work() as session:
        assert claimed_payments.mark_reversed(session, payment_id)
    assert request(stage).get_json()["amount_usd"] == 0.225
    assert reason(request(stage)) == "below_minimum"
    assert_books_agree(stage)
    with read_only_unit() as session:
        assert earnings.owed_nanos(session) == 0


def test_a_payment_reversed_after_its_payout_is_taken_from_later_earnings(
    stage: Market, own_base_node: EvmNode
) -> None:
    _, payment_id = pay_without_account(stage, own_base_node)
    assert request(stage).get_json()["amount_usd"] == 0.225
    with unit_of_work() as session:
        assert claimed_payments.mark_reversed(session, payment_id)
    found = statement(stage)["earnings"]
    assert (found["unpaid_usd"], found["held_usd"], found["payable_usd"]) == (-0.25, 0.0, 0.0)
    first, *_ = earn(stage, 2)
    assert request(stage).get_json()["amount_usd"] == 0.225
    assert reason(refund(stage, first)) == "earnings_exceeded"
    assert_books_agree(stage)


def test_a_payment_is_refunded_on_the_chain_only_once_it_is_final(stage: Market, own_base_node: EvmNode) -> None:
    _, payment_id = pay_without_account(stage, own_base_node)
    earn(stage, 1)
    # A reorganisation could still remove the payment, and leave the refund.
    assert reason(refund(stage, payment_id)) == "payment_not_final"
    look(own_base_node)
    assert refund(stage, payment_id).status_code == 201


@pytest.mark.parametrize("amount", [-0.1, 1e-12, float("nan"), "0.1", True])
def test_an_amount_that_is_no_amount_is_not_refunded(stage: Market, amount: object) -> None:
    [call_id] = earn(stage, 1)
    assert refund(stage, call_id, amount_usd=amount).status_code == 400
    assert statement(stage)["payouts"] == []


def test_limits_of_the_wallet_bind_a_payout_to_an_address_outside(stage: Market) -> None:
    earn(stage, 4)
    stage.seller.controls(per_tx_limit_usd=0.5)
    assert request(stage, {"address": fresh_address()}).get_json()["code"] == "PER_TX_LIMIT_EXCEEDED"
    stage.seller.controls(per_tx_limit_usd=0, approval_threshold_usd=0.5)
    assert request(stage, {"address": fresh_address()}).status_code == 202
    assert request(stage).get_json()["status"] == "paid"


def test_a_refund_is_not_sent_if_its_network_fee_exceeds_it(stage: Market, own_base_node: EvmNode) -> None:
    payer, payment_id = pay_without_account(stage, own_base_node)
    look(own_base_node)
    answer = refund(stage, payment_id, amount_usd=0.000001)
    assert (answer.status_code, answer.get_json()["code"]) == (500, "PAYOUT_FAILED"), answer.get_json()
    assert answer.get_json()["details"]["reason"] == "network_fee_above_maximum"
    assert statement(stage)["payouts"] == []
    assert refund(stage, payment_id).get_json()["to"] == payer.address


def test_the_audit_finds_an_open_payout_that_no_longer_counts(stage: Market) -> None:
    earn(stage, 2)
    payout_id = request(stage).get_json()["id"]
    for status, problems in (("failed", 1), ("paid", 0)):
        with unit_of_work() as session:
            session.execute(update(Payout).where(Payout.id == payout_id).values(status=status))
        with read_only_unit() as session:
            assert len(earnings.find_problems(session)) == problems


def waiting(chain: FaultyChain) -> None:
    """Let nothing that is sent reach the chain."""
    chain.raising("broadcast", "before", Unreachable("node_down"))
    chain.raising("rebroadcast", "before", Unreachable("node_down"), times=100)


def test_a_wallet_is_not_deleted_while_a_payout_to_it_is_under_way(
    stage: Market, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    second = stage.seller.post("/v1/wallets", {}).get_json()["id"]
    earn(stage, 2)
    waiting(chain)
    payout_id = request(stage, {"wallet_id": second}, Prefer="respond-async").get_json()["id"]
    operator = operator_with(stage.app.test_client())
    for answer in (
        stage.seller.delete(f"/v1/wallets/{second}?force=true"), operator.delete(f"/agents/{stage.seller.id}"),
    ):  # fmt: skip
        assert (answer.status_code, answer.get_json()["code"]) == (409, "TRANSACTION_IN_PROGRESS"), answer.get_json()
        assert answer.get_json()["details"] == {"transaction_id": payout_id}
    chain.faults.clear()
    look(own_base_node)
    assert stage.seller.delete(f"/v1/wallets/{second}?force=true").status_code == 200


def test_a_payout_to_a_wallet_that_is_deleted_meanwhile_is_not_signed(stage: Market, chain: FaultyChain) -> None:
    second = stage.seller.post("/v1/wallets", {}).get_json()["id"]
    earn(stage, 2)
    deleted = []

    def delete() -> None:
        deleted.append(stage.seller.delete(f"/v1/wallets/{second}?force=true").status_code)

    chain.fail("draft", "before", delete)
    answer = request(stage, {"wallet_id": second})
    assert deleted == [200]
    assert (answer.status_code, statement(stage)["payouts"]) == (404, [])


def test_the_operator_writes_off_what_a_deleted_seller_has_earned_and_only_that(stage: Market) -> None:
    earn(stage, 4)
    operator = operator_with(stage.app.test_client())
    path = f"/services/{stage.id}/write-off"
    assert reason(operator.post(path)) == "seller_exists"
    assert stage.buyer.post(f"/v1/platform{path}").status_code == 401
    operator.delete(f"/agents/{stage.seller.id}")
    with read_only_unit() as session:
        assert earnings.owed_nanos(session) == 900_000_000
    owed = f"1 USD are owed to a deleted agent for service {stage.id}"
    assert owed in operator.get("/doctor").get_data(as_text=True)
    answer = operator.post(path, None, Idempotency_Key="one")
    body = answer.get_json()
    assert answer.status_code == 201, body
    assert (body["amount_usd"], body["status"]) == (1.0, "paid")
    assert (body["chain"], body["to"], body["closed_at"] is None) == (None, None, False)
    assert operator.post(path, None, Idempotency_Key="one").get_json() == body
    assert reason(operator.post(path)) == "earnings_exceeded"
    [entry] = operator.get("/audit?action=service.written_off").get_json()["entries"]
    assert (entry["subject"]["id"], entry["after"]["service_id"]) == (stage.seller.id, stage.id)
    with read_only_unit() as session:
        assert earnings.owed_nanos(session) == 0
        assert earnings.find_problems(session) == []


def approve(approval_id: str) -> None:
    found = approvals.get(approval_id)
    with unit_of_work() as session:
        assert approvals.decide(session, found, is_approved=True, method=OwnerMethod.OWNER_KEY)
    execute_approvals()


def test_an_owner_approves_a_payout_to_an_address_outside_and_no_more_is_paid(
    stage: Market, chain: FaultyChain
) -> None:
    earn(stage, 4)
    outside = to_checksum_address(fresh_address())
    stage.seller.controls(approval_threshold_usd=0.5)
    answer = request(stage, {"address": outside}, Idempotency_Key="payout-1")
    assert answer.status_code == 202, answer.get_json()
    approval_id = answer.get_json()["approval"]["id"]
    someone = person(stage.app)
    someone.claim(stage.seller.post("/v1/agents/claim-code").get_json())
    page = f"/owner/agents/{stage.seller.id}/approvals/{approval_id}"
    title = someone.get(page).text.partition("<h1>")[2].partition("</h1>")[0]
    assert title.startswith("Pay out $0.90 of earnings on Base to "), title
    assert outside in title
    shown = approvals.get(approval_id)
    assert (shown.kind, shown.value_nanos, shown.recipient) == ("payout", 900_000_000, outside)
    assert shown.facts == {"chain": "base"}
    assert (statement(stage)["payouts"], stage.seller.spent_this_month()) == ([], 0.9)
    earn(stage, 4)
    approve(approval_id)
    [row] = statement(stage)["payouts"]
    found = stage.seller.get(f"/v1/approvals/{approval_id}").get_json()
    assert (found["status"], found["transaction_id"], found["error"]) == ("executed", row["id"], None)
    assert (row["amount_usd"], row["commission_usd"], row["to"]) == (0.9, 0.1, outside)
    assert held(chain, outside) == usdc(0.9)
    # Its transaction is the treasury's, so that the owner has no page of it.
    assert "and it was executed" in someone.get(page).text
    assert row["id"] not in someone.get(page).text
    assert stage.seller.spent_this_month() == 0
    execute_approvals()
    again = request(stage, {"address": outside}, Idempotency_Key="payout-1")
    assert again.get_json() == answer.get_json()
    assert len(statement(stage)["payouts"]) == 1
    assert_books_agree(stage)


def test_what_was_refunded_before_the_owner_approved_is_not_paid(stage: Market, chain: FaultyChain) -> None:
    call_id, *_ = earn(stage, 4)
    outside = fresh_address()
    stage.seller.controls(approval_threshold_usd=0.5)
    approval_id = request(stage, {"address": outside}).get_json()["approval"]["id"]
    refund(stage, call_id)
    approve(approval_id)
    assert held(chain, outside) == usdc(0.675)
    assert_books_agree(stage)


def test_a_payout_that_the_owner_refuses_is_not_made_and_holds_nothing(stage: Market) -> None:
    earn(stage, 4)
    stage.seller.controls(approval_threshold_usd=0.5)
    approval_id = request(stage, {"address": fresh_address()}).get_json()["approval"]["id"]
    waiting_for_owner = approvals.get(approval_id)
    with unit_of_work() as session:
        by_session = OwnerMethod.SESSION
        assert approvals.decide(session, waiting_for_owner, is_approved=False, method=by_session)
    execute_approvals()
    assert (statement(stage)["payouts"], stage.seller.spent_this_month()) == ([], 0)
    assert request(stage).get_json()["amount_usd"] == 0.9
