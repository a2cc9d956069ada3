"""Payments of the scheme `upto`: a maximum is signed, and what the call cost is taken after it, on real chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import PERMIT2
from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.credits import accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import jobs as payment_jobs
from app.payments.models import SettlementRisk
from app.payments.presented import PaymentHeaders, PaymentPrice
from app.payments.x402 import gate, metered
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.api.test_payments_signed import fund_settlement, reason, received
from tests.support.chains import fund
from tests.support.evm import chain_at, proxy
from tests.support.gateway import CHAT
from tests.support.loopback_http import Reply
from tests.support.payments import Shop, UptoPayer, decoded, encoded, metered_terms, shop
from tests.support.upstreams import Exchange, chat_answer, chat_chunks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}
PRICE = 10_000
"""Units that the call costs at most: the minimum price of a call that is paid for by itself."""
COST = 63
"""Units of USDC that ten tokens of input and five of output cost, rounded up."""


def answers(exchange: Exchange) -> None:
    exchange.json(chat_answer(tokens_in=10, tokens_out=5))


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains) as made:
        fund_settlement(made, base_node)
        made.upstream.behave = answers
        yield made


def chat(made: Shop, headers: dict[str, str] | None = None, **more: Any) -> TestResponse:
    return made.app.test_client().post(CHAT, json={**BODY, **more}, headers=headers or {})


def states(made: Shop) -> list[tuple[str, int]]:
    return [(each.status, each.units) for each in made.payments()]


def work(*, after: float = 0) -> None:
    """Let the workers settle what there is to settle, some seconds from now."""
    with later(after):
        usage.charge_lapsed()
        payment_jobs.resume_settlements(BASE)
        confirmation.confirm(BASE)
        payment_jobs.resume_settlements(BASE)


def work_until(made: Shop, status: str, units: int) -> None:
    def is_reached() -> bool:
        work(after=60)
        return states(made)[-1] == (status, units)

    wait_until(is_reached, interval=0.3, what=f"a payment that is {status}")


def later(seconds: float) -> time_machine.travel:
    return time_machine.travel(clock.now() + timedelta(seconds=seconds), tick=True)


@pytest.mark.parametrize("with_allowance", [True, False])
def test_a_call_takes_what_it_cost_and_no_more(open_shop: Shop, base_node: EvmNode, *, with_allowance: bool) -> None:
    payer, unpaid = UptoPayer(base_node), chat(open_shop)
    if not with_allowance:
        payer.call_usdc("approve", PERMIT2, 10**9)
    headers = payer.metered(unpaid, with_allowance=with_allowance)
    answer = chat(open_shop, headers)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    settled = decoded(answer.headers["PAYMENT-RESPONSE"])
    assert (settled["success"], settled["payer"], settled["amount"]) == (True, payer.address, str(COST))
    assert answer.headers["Cache-Control"] == "no-store"
    assert (answer.headers["X-Cost-Usd"], "X-Credits-Remaining" in answer.headers) == ("0.0000625", False)
    assert (received(open_shop, BASE), states(open_shop)) == (COST, [("served", COST)])
    [payment] = open_shop.payments()
    with read_only_unit() as session:
        assert accounts.balance(session, payment.id) == (0, 0, 62_500, 62_500)
        assert payment_jobs.check(session) == []
    assert reason(chat(open_shop, headers))[0] == "PAYMENT_ALREADY_USED"
    assert reason(chat(open_shop, headers, max_tokens=400))[0] == "PAYMENT_ALREADY_USED"
    assert (received(open_shop, BASE), open_shop.served()) == (COST, 1)


def test_a_stream_is_paid_for_once_it_has_ended(open_shop: Shop, base_node: EvmNode) -> None:
    def behave(exchange: Exchange) -> None:
        exchange.start_stream()
        for frame in chat_chunks("Hel", "lo", tokens_in=10, tokens_out=5):
            exchange.chunk(frame)
        exchange.end_stream()

    open_shop.upstream.behave = behave
    headers = UptoPayer(base_node).metered(chat(open_shop, stream=True))
    assert b"Hel" in chat(open_shop, headers, stream=True).get_data()

    work_until(open_shop, "served", COST)
    assert received(open_shop, BASE) == COST


def test_a_failed_call_costs_nothing_and_its_payment_can_be_presented_again(
    open_shop: Shop, base_node: EvmNode
) -> None:
    headers = UptoPayer(base_node).metered(chat(open_shop))
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": {"message": "down"}}, 500)
    assert chat(open_shop, headers).status_code == 500
    open_shop.upstream.behave = Exchange.hang_up
    assert chat(open_shop, headers).status_code == 502
    assert (received(open_shop, BASE), open_shop.claims()) == (0, set())
    open_shop.upstream.behave = answers
    assert chat(open_shop, headers).status_code == 200
    assert received(open_shop, BASE) == COST
    assert sorted(states(open_shop)) == [("served", COST), ("void", PRICE), ("void", PRICE)]


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"to": "0x" + "11" * 20}, "invalid_permit2_recipient_mismatch"),
        ({"facilitator": "0x" + "11" * 20}, "upto_facilitator_mismatch"),
        ({"token": "0x" + "11" * 20}, "permit2_token_mismatch"),
        ({"spender": "0x" + "11" * 20}, "invalid_permit2_spender"),
        ({"units": PRICE - 1}, "permit2_amount_mismatch"),
        ({"validAfter": 3_900_000_000}, "permit2_not_yet_valid"),
        ({"deadline": int(clock.now().timestamp()) + 1_500}, "permit2_deadline_expired"),
        ({"nonce": -1}, "invalid_payload"),
        ({"with_allowance": False}, "permit2_allowance_required"),
    ],
)
def test_a_maximum_that_differs_from_the_terms_is_refused(
    open_shop: Shop, base_node: EvmNode, changed: dict[str, Any], refusal: str
) -> None:
    payer, terms = UptoPayer(base_node), metered_terms(chat(open_shop))
    values = {"with_allowance": True, "units": int(terms["amount"]), **changed}
    if values.get("nonce") == -1:
        headers = payer.maximum(terms, with_allowance=True, units=PRICE, nonce=7)
        document = decoded(headers["PAYMENT-SIGNATURE"])
        document["payload"]["permit2Authorization"]["nonce"] = "-1"
        headers = {"PAYMENT-SIGNATURE": encoded(document)}
    else:
        headers = payer.maximum(terms, **values)
    assert reason(chat(open_shop, headers)) == ("PAYMENT_INVALID", refusal)
    assert (open_shop.served(), open_shop.claims(), open_shop.payments()) == (0, set(), [])


def test_a_signature_that_another_account_made_is_refused_and_claims_nothing(
    open_shop: Shop, base_node: EvmNode
) -> None:
    victim, thief = UptoPayer(base_node), UptoPayer(base_node)
    headers = thief.metered(chat(open_shop))
    document = decoded(headers["PAYMENT-SIGNATURE"])
    document["payload"]["permit2Authorization"]["from"] = victim.address
    forged = {"PAYMENT-SIGNATURE": encoded(document)}
    assert reason(chat(open_shop, forged)) == ("PAYMENT_INVALID", "invalid_permit2_signature")
    assert (open_shop.claims(), open_shop.served()) == (set(), 0)
    assert chat(open_shop, headers).status_code == 200


def test_a_call_with_a_known_price_does_not_offer_it_and_refuses_it(open_shop: Shop, base_node: EvmNode) -> None:
    searches = open_shop.ask()
    assert {each["scheme"] for each in decoded(searches.headers["PAYMENT-REQUIRED"])["accepts"]} == {"exact"}
    headers = UptoPayer(base_node).metered(chat(open_shop))
    assert reason(open_shop.ask(headers)) == ("PAYMENT_INVALID", "unsupported_scheme")
    assert (open_shop.claims(), open_shop.served()) == (set(), 0)


def test_an_account_with_code_is_refused(open_shop: Shop, base_node: EvmNode) -> None:
    payer = UptoPayer(base_node)
    headers = payer.metered(chat(open_shop))
    base_node.rpc("anvil_setCode", payer.address, "0x00")
    assert reason(chat(open_shop, headers))[1] == "upto_payer_has_code"


def test_of_many_concurrent_uses_of_one_maximum_one_is_served(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        fund_settlement(made, base_node)
        made.upstream.behave = answers
        headers = UptoPayer(base_node).metered(chat(made))

        def one(_number: int) -> int:
            with made.app.app_context():
                return chat(made, headers).status_code

        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(one, range(16)))
        assert (statuses.count(200), made.served(), received(made, BASE)) == (1, 1, COST)


def test_what_one_payer_and_all_payers_owe_at_once_is_bounded(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    limits = {"x402_upto_usd_per_payer": "0.02", "x402_upto_usd": "0.03"}
    with shop(build_app, postgres_url, chains, database_pool_size=20, **limits) as made:
        fund_settlement(made, base_node)

        def behave(exchange: Exchange) -> None:
            exchange.wait_for("answer")
            answers(exchange)

        made.upstream.behave = behave
        payers = [UptoPayer(base_node) for _ in range(2)]
        for payer in payers:
            payer.call_usdc("approve", PERMIT2, 10**9)
        unpaid = chat(made)

        def one(payer: UptoPayer) -> tuple[int, str]:
            with made.app.app_context():
                answer = chat(made, payer.metered(unpaid, with_allowance=False))
                refused = answer.status_code == 402
                if not refused:
                    return answer.status_code, ""
                return 402, reason(answer)[1]

        with ThreadPoolExecutor(12) as pool:
            calls = [pool.submit(one, payer) for payer in payers * 6]
            wait_until(lambda: sum(each.done() for each in calls) == 9, what="the refusals")
            made.upstream.gate("answer").set()
            outcomes = [each.result() for each in calls]
        assert outcomes.count((200, "")) == made.served() == 3
        assert {each for each in outcomes if each[0] != 200} == {(402, "upto_payer_limit"), (402, "upto_paused")}
        assert received(made, BASE) == 3 * COST


@pytest.mark.parametrize("theft", ["funds", "allowance"])
def test_a_payer_who_takes_its_money_away_meanwhile_costs_one_call_and_is_refused(
    open_shop: Shop, base_node: EvmNode, theft: str
) -> None:
    payer, thief_keeps = UptoPayer(base_node), "0x" + "77" * 20
    payer.call_usdc("approve", PERMIT2, 10**9)
    unpaid = chat(open_shop)
    deadline = int(clock.now().timestamp()) + 2_000
    headers = payer.metered(unpaid, with_allowance=False, deadline=deadline)

    def behave(exchange: Exchange) -> None:
        if theft == "funds":
            payer.call_usdc("transfer", thief_keeps, 10**6)
        else:
            payer.call_usdc("approve", PERMIT2, 0)
        answers(exchange)

    open_shop.upstream.behave = behave
    answer = chat(open_shop, headers)
    assert (answer.status_code, "PAYMENT-RESPONSE" in answer.headers) == (200, False)
    assert (received(open_shop, BASE), states(open_shop)) == (0, [("authorized", PRICE)])
    # It is tried again until it expires.
    work()
    assert states(open_shop) == [("authorized", PRICE)]
    work(after=2_100)
    assert states(open_shop) == [("reversed", PRICE)]
    open_shop.upstream.behave = answers
    again = UptoPayer(base_node)
    again.account, again.address = payer.account, payer.address
    fund(base_node, payer.address, eth=0, dollars=1)
    again.call_usdc("approve", PERMIT2, 10**9)
    assert reason(chat(open_shop, again.metered(unpaid, with_allowance=False)))[1] == "upto_unpaid"
    assert open_shop.served() == 1


def test_what_was_lost_within_a_day_counts_in_the_total(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains, x402_upto_usd="0.015") as made:
        fund_settlement(made, base_node)
        unpaid, deadline = chat(made), int(clock.now().timestamp()) + 2_000
        payer = UptoPayer(base_node)
        headers = payer.metered(unpaid, deadline=deadline)

        def behave(exchange: Exchange) -> None:
            payer.call_usdc("transfer", "0x" + "77" * 20, 10**6)
            answers(exchange)

        made.upstream.behave = behave
        assert chat(made, headers).status_code == 200
        work(after=2_100)
        made.upstream.behave = answers
        assert reason(chat(made, UptoPayer(base_node).metered(unpaid)))[1] == "upto_paused"
        with later(25 * 3600):
            assert chat(made, UptoPayer(base_node).metered(unpaid)).status_code == 200


def test_new_payments_are_paused_once_submissions_that_failed_have_cost_the_days_budget_and_not_before(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains, x402_failed_gas_usd_per_day="2") as made:
        fund_settlement(made, base_node)
        made.upstream.behave = answers
        unpaid = chat(made)
        for nanos, expected in ((1_999_999_999, None), (1, "upto_paused")):
            with made.app.app_context(), unit_of_work() as session:
                session.add(SettlementRisk(
                    payment_id=new_id(), chain="base", payer="0x1", claim=new_id(), risky=False, failed=True,
                    cost_nanos=nanos, created_at=clock.now(),
                ))  # fmt: skip
            answer = chat(made, UptoPayer(base_node).metered(unpaid))
            assert (answer.status_code if expected is None else reason(answer)[1]) == (expected or 200)


def test_a_call_that_ended_while_the_chain_was_unreachable_is_settled_by_a_worker(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    with proxy(base_node.url) as front, shop(build_app, sqlite_url, {BASE: chain_at(base_node, front.url)}) as made:
        fund_settlement(made, base_node)
        headers = UptoPayer(base_node).metered(chat(made))

        def behave(exchange: Exchange) -> None:
            front.before = lambda _calls: Reply(503, b"")
            answers(exchange)

        made.upstream.behave = behave
        assert chat(made, headers).status_code == 200
        assert states(made) == [("authorized", PRICE)]
        front.before = lambda _calls: None
        work_until(made, "served", COST)
        assert received(made, BASE) == COST


def test_a_call_whose_process_died_is_charged_its_estimate(open_shop: Shop, base_node: EvmNode) -> None:
    unpaid = chat(open_shop)
    begun, unused = (UptoPayer(base_node).metered(unpaid) for _ in range(2))
    ids = [accepted(open_shop, headers) for headers in (begun, unused)]
    with unit_of_work() as session:
        usage.begin(
            session, ids[0], UsageCall(ids[0], "openai", "gpt-5"), hold_id=ids[0], nanos=PRICE * 1_000,
            estimate=MeteredUsage(2_000_500, 1, 1, "estimated"), lease=timedelta(seconds=30),
        )  # fmt: skip
    work()
    assert states(open_shop) == [("authorized", PRICE), ("authorized", PRICE)]
    work(after=600)
    wait_until(lambda: (work(after=660), states(open_shop)[0][0])[1] == "served", what="the payment of the call")
    assert states(open_shop) == [("served", 2_001), ("void", PRICE)]
    assert received(open_shop, BASE) == 2_001
    assert chat(open_shop, unused).status_code == 200


def accepted(made: Shop, headers: dict[str, str]) -> str:
    """Accept the payment of a call that is not made, as in a process that dies."""
    price = PaymentPrice(
        nanos=PRICE * 1_000, fingerprint="f" * 64, provider="openai", resource="", description="", method="POST",
        headers=PaymentHeaders(signed=headers["PAYMENT-SIGNATURE"]), is_metered=True,
    )  # fmt: skip
    del made
    return gate.accept_payment(price, payer=None).payment_id


def test_processes_that_settle_at_once_submit_once(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        fund_settlement(made, base_node)
        payment_id = accepted(made, UptoPayer(base_node).metered(chat(made)))
        with unit_of_work() as session:
            call = UsageCall(payment_id, "openai", "gpt-5")
            usage.charge(session, payment_id, call, charge_id=payment_id, metered=MeteredUsage(5_000, 1, 1, "1"))

        def one(_number: int) -> str:
            with made.app.app_context():
                return str(metered.settle(payment_id, waits=True).status)

        with ThreadPoolExecutor(8) as pool:
            assert "served" in set(pool.map(one, range(8)))
        assert (received(made, BASE), states(made)) == (5, [("served", 5)])


def test_a_payer_is_not_refused_for_what_the_operator_caused(open_shop: Shop, base_node: EvmNode) -> None:
    unpaid, payer, settler = chat(open_shop), UptoPayer(base_node), open_shop.settler(BASE)
    payer.call_usdc("approve", PERMIT2, 10**9)
    deadline = int(clock.now().timestamp()) + 2_000

    def behave(exchange: Exchange) -> None:
        base_node.rpc("anvil_setBalance", settler, "0x0")
        answers(exchange)

    open_shop.upstream.behave = behave
    assert chat(open_shop, payer.metered(unpaid, with_allowance=False, deadline=deadline)).status_code == 200
    work()
    assert states(open_shop) == [("authorized", PRICE)]
    work(after=2_100)
    assert states(open_shop) == [("closed", PRICE)]
    fund_settlement(open_shop, base_node)
    open_shop.upstream.behave = answers
    assert chat(open_shop, payer.metered(unpaid, with_allowance=False)).status_code == 200
