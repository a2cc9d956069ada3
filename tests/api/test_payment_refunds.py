"""Refunds of payments that no seller has earned: each is returned at most once, to nobody but its payer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import text, update

from app.catalog.models import Payout
from app.catalog.payouts import earnings
from app.catalog.payouts import service as payouts
from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.identity.principal import MasterKeyRole
from app.payments import claimed_payments, treasury
from app.payments.models import Payment
from app.payments.treasury import WalletRole
from app.ports.errors import Unreachable
from app.shopping.service import PROVIDER as SHOPPING
from sandbox.evm import EvmNode
from tests.api.test_payments_signed import fund_settlement
from tests.support.chains import evm_chain, fund, usdc
from tests.support.evm import sent as transfer
from tests.support.faults import FaultyChain
from tests.support.operators import Operator, entries, operator
from tests.support.payments import EvmPayer, Shop, by_hash, person_with, shop
from workers import confirmations

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
SETTINGS = {"payouts_enabled": "1", "confirmation_wait_seconds": "5"}


@pytest.fixture
def chain(own_base_node: EvmNode) -> FaultyChain:
    return FaultyChain(evm_chain(own_base_node))


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> Iterator[Shop]:
    yield from opened(build_app, sqlite_url, own_base_node, chain)


def opened(build_app: Callable[..., Flask], url: str, node: EvmNode, chain: FaultyChain, **more: Any) -> Iterator[Shop]:
    with shop(build_app, url, {BASE: chain}, **{**SETTINGS, **more}) as made:
        fund_settlement(made, node)
        fund(node, treasury.wallet(WalletRole.TREASURY, BASE).address_on(BASE), eth=0, dollars=50)
        yield made


def look(node: EvmNode, *, minutes: int = 2) -> None:
    """Let workers settle what is pending, with blocks that are final."""
    node.mine(80)
    for number in range(1, 4):
        with time_machine.travel(clock.now() + timedelta(minutes=minutes * number), tick=True):
            confirmations.confirm("base")


def paid(made: Shop, node: EvmNode, *, status: int = 500) -> tuple[EvmPayer, str]:
    """Pay for a call that the provider answers with a status; return the payer and the payment, which is final."""
    payer = EvmPayer(node)
    made.upstream.behave = lambda exchange: exchange.json({"results": []}, status=status)
    made.ask(payer.pays(made.ask()))
    look(node)
    return payer, made.payments()[-1].id


def refund(who: Operator, payment_id: str, body: object = None, **headers: str) -> Any:
    return who.post(f"/payments/{payment_id}/refund", body, **headers)


def reason(answer: Any) -> str:
    assert (answer.status_code, answer.get_json()["code"]) == (409, "PAYOUT_REFUSED"), answer.get_json()
    return str(answer.get_json()["details"]["reason"])


def held(chain: FaultyChain, address: str) -> int:
    return chain.real.balances(address).of(USDC).units


def change(payment_id: str, **values: Any) -> None:
    with unit_of_work() as session:
        session.execute(update(Payment).where(Payment.id == payment_id).values(values))


def statuses(made: Shop) -> list[str]:
    return [each.status for each in made.payments()]


def test_a_payment_is_returned_by_a_command(open_shop: Shop, chain: FaultyChain, own_base_node: EvmNode) -> None:
    payer, payment_id = paid(open_shop, own_base_node)
    before = held(chain, payer.address)
    with open_shop.app.app_context():
        done = open_shop.app.test_cli_runner().invoke(args=["platform", "refund_payment", f"payment_id={payment_id}"])
        [entry] = entries(action="payment.refunded")
    assert (done.exit_code, entry.actor_kind, entry.actor_id) == (0, "command", None), done.output
    assert held(chain, payer.address) - before == usdc(0.01)


@pytest.mark.parametrize("status", [200, 500], ids=["served", "unserved"])
def test_a_payment_is_returned_to_its_payer_once_and_pays_for_no_call(
    open_shop: Shop, chain: FaultyChain, own_base_node: EvmNode, status: int
) -> None:
    payer = EvmPayer(own_base_node)
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []}, status=status)
    headers = payer.pays(open_shop.ask())
    open_shop.ask(headers)
    [payment] = open_shop.payments()
    who = operator(open_shop.app.test_client())
    assert reason(refund(who, payment.id)) == "payment_not_final"
    look(own_base_node)
    [listed] = who.get("/payments").get_json()["payments"]
    assert (listed["id"], listed["status"], listed["refundable"]) == (payment.id, payment.status, True)
    before = held(chain, payer.address)
    answer = refund(who, payment.id, Idempotency_Key="one")
    body = answer.get_json()
    assert (answer.status_code, body["status"], body["kind"], body["to"]) == (201, "paid", "refund", payer.address)
    assert (body["service_id"], body["call_id"], body["amount_usd"]) == (None, payment.id, 0.01)
    assert held(chain, payer.address) - before == usdc(0.01)
    assert refund(who, payment.id, Idempotency_Key="one").get_json()["id"] == body["id"]
    assert reason(refund(who, payment.id)) == "refunded_before"
    assert open_shop.ask(headers).get_json()["code"] == "PAYMENT_ALREADY_USED"
    look(own_base_node)
    [listed] = who.get("/payments?status=refunded").get_json()["payments"]
    assert (listed["refundable"], who.get("/payouts").get_json()["payouts"][0]["status"]) == (False, "paid")
    [entry] = entries(action="payment.refunded")
    assert (entry.subject_id, entry.actor_id) == (payment.id, who.id)
    assert held(chain, payer.address) - before == usdc(0.01)


def test_an_overpayment_is_returned_whole_or_in_part(
    open_shop: Shop, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    person = person_with(own_base_node)
    done = transfer(chain.real, person, open_shop.recipient(BASE), usdc(0.5), token=USDC)
    own_base_node.mine(6)
    assert open_shop.ask(by_hash(done.tx_hash, BASE)).status_code == 200
    look(own_base_node)
    who, [payment] = operator(open_shop.app.test_client()), open_shop.payments()
    for wrong in (0, 0.500001, 0.1000001):
        assert refund(who, payment.id, {"amount_usd": wrong}).status_code == 400
    assert statuses(open_shop) == ["served"]
    assert refund(who, payment.id, {"amount_usd": 0.49}).get_json()["amount_usd"] == 0.49
    assert held(chain, person.address) == usdc(0.99)


def test_what_several_addresses_paid_together_is_returned_to_none_of_them(
    open_shop: Shop, own_base_node: EvmNode
) -> None:
    _, payment_id = paid(open_shop, own_base_node)
    who = operator(open_shop.app.test_client())
    change(payment_id, rail="hash", payer=EvmPayer(own_base_node).address)
    assert reason(refund(who, payment_id)) == "payer_unknown"
    assert statuses(open_shop) == ["paid"]


@pytest.mark.parametrize(
    ("status", "hours", "allowed"),
    [
        ("serving", 47, False), ("serving", 49, True), ("closed", 0, True), ("void", 0, False), ("reversed", 0, False),
        ("settling", 0, False), ("authorized", 0, False),
    ],
)  # fmt: skip
def test_only_what_was_received_and_no_call_uses_is_returned(
    open_shop: Shop, own_base_node: EvmNode, status: str, hours: int, *, allowed: bool
) -> None:
    _, payment_id = paid(open_shop, own_base_node)
    change(payment_id, status=status)
    who = operator(open_shop.app.test_client())
    with time_machine.travel(clock.now() + timedelta(hours=hours), tick=True):
        answer = refund(who, payment_id)
        assert answer.status_code == 201 if allowed else reason(answer) == "payment_not_refundable"
    assert statuses(open_shop) == ["refunded" if allowed else status]
    if not allowed:
        change(payment_id, status="paid")


@pytest.mark.parametrize(
    ("status", "hours", "allowed"), [("served", 47, False), ("served", 49, True), ("paid", 0, True)]
)
def test_what_pays_for_a_purchase_is_returned_only_once_that_has_ended(
    open_shop: Shop, own_base_node: EvmNode, status: str, hours: int, *, allowed: bool
) -> None:
    _, payment_id = paid(open_shop, own_base_node)
    change(payment_id, status=status, provider=SHOPPING)
    with time_machine.travel(clock.now() + timedelta(hours=hours), tick=True):
        answer = refund(operator(open_shop.app.test_client()), payment_id)
        assert answer.status_code == 201 if allowed else reason(answer) == "payment_not_refundable"


def test_one_that_the_operator_recorded_as_returned_before_a_restore_is_not_returned_again(
    open_shop: Shop, own_base_node: EvmNode
) -> None:
    _, payment_id = paid(open_shop, own_base_node)
    guide = Path(__file__).parents[2].joinpath("docs/operations/payouts.md").read_text("utf-8")
    [statement] = re.findall(r'"(UPDATE payments [^"]+)"', guide)
    with unit_of_work() as session:
        # On SQLite, an id has no dashes.
        session.execute(text(statement.replace("…", payment_id.replace("-", ""))))
    assert reason(refund(operator(open_shop.app.test_client()), payment_id)) == "payment_not_refundable"
    with read_only_unit() as session:
        assert (earnings.find_problems(session), claimed_payments.find_without_claim(session)) == ([], [])


def test_a_call_that_begins_while_a_refund_is_prepared_keeps_its_payment(
    open_shop: Shop, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    payer, payment_id = paid(open_shop, own_base_node)
    before = held(chain, payer.address)

    def begin() -> None:
        with unit_of_work() as session:
            assert claimed_payments.start_attempt(session, payment_id)

    chain.fail("draft", "before", begin)
    who = operator(open_shop.app.test_client())
    assert reason(refund(who, payment_id)) == "payment_not_refundable"
    assert (statuses(open_shop), held(chain, payer.address)) == (["serving"], before)
    with unit_of_work() as session:
        assert claimed_payments.mark_served(session, payment_id)


def test_a_refund_that_finally_failed_can_be_made_again(
    open_shop: Shop, chain: FaultyChain, own_base_node: EvmNode
) -> None:
    payer, payment_id = paid(open_shop, own_base_node)
    before, who = held(chain, payer.address), operator(open_shop.app.test_client())
    chain.raising("broadcast", "before", Unreachable("node_down"))
    chain.raising("rebroadcast", "before", Unreachable("node_down"), times=100)
    assert refund(who, payment_id, Prefer="respond-async").get_json()["status"] == "pending"
    assert reason(refund(who, payment_id)) == "refunded_before"
    for minutes in (20, 40):
        own_base_node.rpc("evm_increaseTime", 700)
        look(own_base_node, minutes=minutes)
    assert [each["status"] for each in who.get("/payouts").get_json()["payouts"]] == ["failed"]
    # The clock of the node is ahead.
    with time_machine.travel(clock.now() + timedelta(minutes=25), tick=True):
        assert refund(who, payment_id).get_json()["status"] == "paid"
    assert (held(chain, payer.address) - before, statuses(open_shop)) == (usdc(0.01), ["refunded"])
    # A restored database calls one failed that was paid.
    [_, first] = who.get("/payouts").get_json()["payouts"]
    with unit_of_work() as session:
        payouts.reopen(session, first["id"])
    listed = [(each["status"], each["call_id"]) for each in who.get("/payouts").get_json()["payouts"]]
    assert listed == [("paid", payment_id), ("pending", None)]
    payouts.settle(Payout.id == first["id"])
    with unit_of_work() as session:
        # As it really was.
        session.execute(update(Payout).where(Payout.id == first["id"]).values(call_id=payment_id))


def test_what_is_unknown_or_of_another_role_is_refused(open_shop: Shop, own_base_node: EvmNode) -> None:
    _, payment_id = paid(open_shop, own_base_node)
    who = operator(open_shop.app.test_client())
    assert refund(who, new_id()).status_code == 404
    assert refund(who, "nothing").status_code == 404
    viewer = operator(open_shop.app.test_client(), role=MasterKeyRole.VIEWER)
    assert viewer.get("/payments").status_code == 200
    assert refund(viewer, payment_id).status_code == 403
    assert statuses(open_shop) == ["paid"]


def test_nothing_is_returned_while_payouts_are_off(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode, chain: FaultyChain
) -> None:
    for made in opened(build_app, sqlite_url, own_base_node, chain, payouts_enabled="0"):
        _, payment_id = paid(made, own_base_node)
        assert reason(refund(operator(made.app.test_client()), payment_id)) == "not_offered"


def test_the_audit_finds_a_refund_that_is_not_of_its_payment(open_shop: Shop, own_base_node: EvmNode) -> None:
    _, payment_id = paid(open_shop, own_base_node)
    assert refund(operator(open_shop.app.test_client()), payment_id).status_code == 201
    look(own_base_node)

    [row] = open_shop.payments()

    def problems(**changed: Any) -> list[str]:
        change(payment_id, **changed)
        with read_only_unit() as session:
            found = earnings.find_problems(session)
        change(payment_id, **{name: getattr(row, name) for name in changed})
        return found

    assert problems(units=row.units) == []
    assert len(problems(payer="0x52908400098527886E0F7030069857D2E4169EE7")) == 1
    assert len(problems(units=9_999)) == 1
    assert len(problems(status="served")) == 1
    assert problems(status="reversed") == []
    with read_only_unit() as session:
        assert earnings.owed_nanos(session) == 0
