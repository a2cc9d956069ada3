"""The margin of calls: what was charged and paid, less refunds, sellers' shares and providers' prices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import delete

from app.catalog.models import PROVIDER_PREFIX, Payout, PayoutKind, PayoutStatus
from app.catalog.payouts.service import PAYOUTS
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.payments import claimed_payments
from app.payments.claimed_payments import PaymentRail, PaymentStatus
from app.payments.models import Payment
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from tests.support.agents import register
from tests.support.earned import earn
from tests.support.operators import Operator, operator

SERVICE = new_id()
TODAY = "2026-11-27"


@pytest.fixture
def who(build_app: Callable[..., Flask], database_url: str) -> Any:
    app = build_app(database_url, settings={"payout_commission_bps": "1000"})
    with app.app_context(), time_machine.travel(f"{TODAY}T12:00:00Z", tick=True):
        agent = register(app.test_client())
        charge(agent.id, "openai", "gpt-5", 1_000_000, "2026-11-01")
        charge(agent.id, "openai", "gpt-5", 500_000, "2026-11-01+estimate")
        charge(agent.id, "openai", "own", 300_000, "configured")
        charge(agent.id, "brave", "web/search", 5_000_000, "fixed")
        earn(SERVICE, agent.id, calls=1, usd=0.002)
        pay("brave", 10_000)
        pay("openai", 20_000)
        pay(f"{PROVIDER_PREFIX}{SERVICE}", 30_000)
        # They are charged from credits, were not served, or were reversed.
        pay("openai", 70_000, rail=PaymentRail.UPTO)
        pay("shopping", 70_000)
        pay("openai", 70_000, served=False)
        reversed_id = pay("openai", 70_000)
        with unit_of_work() as session:
            claimed_payments.mark_reversed(session, reversed_id)
        refund(4_000_000, payment_id=pay("brave", 40_000))
        refund(1_000_000, service_id=SERVICE)
        refund(9_000_000, payment_id=pay("brave", 90_000, served=False))
        refund(9_000_000, service_id=SERVICE, status=PayoutStatus.FAILED)
        with time_machine.travel(clock.now() - timedelta(days=3)):
            charge(agent.id, "openai", "gpt-5", 8_000_000, "2026-11-01")
            pay("openai", 80_000)
        yield operator(app.test_client())
        with unit_of_work() as session:
            # They are on no chain, which the audit would find.
            for each in (Payment, Payout):
                session.execute(delete(each))


def charge(account_id: str, provider: str, model: str, nanos: int, version: str | None) -> None:
    with unit_of_work() as session:
        metered = MeteredUsage(nanos, 10, 5, price_version=version)
        usage.charge(session, account_id, UsageCall(account_id, provider, model), charge_id=new_id(), metered=metered)


def pay(provider: str, units: int, *, rail: PaymentRail = PaymentRail.SIGNED, served: bool = True) -> str:
    payment = Payment(
        id=new_id(), rail=rail.value, chain="base", payer="0x1", units=units, required_units=units, provider=provider,
        fingerprint="", signed=True, recipient="0x2", terms={}, served_at=clock.now() if served else None,
    )  # fmt: skip
    with unit_of_work() as session:
        claimed_payments.add_payment(session, payment, status=PaymentStatus.PAID)
        return payment.id


def refund(
    nanos: int,
    *,
    payment_id: str | None = None,
    service_id: str | None = None,
    status: PayoutStatus = PayoutStatus.PAID,
) -> None:
    with unit_of_work() as session:
        row = Payout(
            id=new_id(), service_id=service_id, agent_id=service_id, kind=PayoutKind.REFUND.value, amount_nanos=nanos,
            commission_nanos=0, call_id=payment_id or new_id(), created_at=clock.now(),
        )  # fmt: skip
        PAYOUTS.add(session, row, PayoutStatus.PENDING)
        PAYOUTS.move(session, row.id, PayoutStatus.PENDING, status)


def sums(who: Operator, group_by: str, query: str = f"&created_after={TODAY}T00:00:00Z") -> dict[Any, list[int]]:
    answer = who.get(f"/usage/sums?group_by={group_by}{query}")
    assert answer.status_code == 200, answer.get_json()
    names = ("calls", "cost_usd", "paid_usd", "refunded_usd", "provider_usd", "own_price_usd", "margin_usd")
    return {
        each[group_by]: [each["calls"], *(int(Decimal(str(each[name])) * 10**6) for name in names[1:])]
        for each in answer.get_json()["sums"]
    }


def test_each_provider_has_its_revenue_costs_and_margin(who: Operator) -> None:
    # Millionths of a dollar: charged or paid, paid, refunded, cost, cost unknown, margin.
    assert sums(who, "provider") == {
        "openai": [4, 21_800, 20_000, 0, 1_500, 20_300, 0],
        "brave": [3, 55_000, 50_000, 4_000, 0, 55_000, -4_000],
        f"service:{SERVICE}": [2, 32_000, 30_000, 1_000, 27_900, 0, 3_100],
    }


def test_models_and_days_add_up_to_the_same(who: Operator) -> None:
    of_models, of_days = sums(who, "model"), sums(who, "day")
    assert of_models["gpt-5"] == [2, 1_500, 0, 0, 1_500, 0, 0]
    assert of_models[None] == [4, 100_000, 100_000, 5_000, 26_100, 70_000, -1_100]
    assert of_days[TODAY] == [sum(column) for column in zip(*of_models.values(), strict=True)]
    assert sums(who, "day", "")["2026-11-24"] == [2, 88_000, 80_000, 0, 8_000, 80_000, 0]


def test_sums_of_keys_agents_and_models_lack_what_is_of_none_of_them(who: Operator) -> None:
    [of_agent] = sums(who, "agent_id").values()
    assert of_agent == [5, 8_800, 0, 0, 3_300, 5_300, 200]
    filtered = sums(who, "provider", "&model=gpt-5")
    assert filtered == {"openai": [3, 9_500, 0, 0, 9_500, 0, 0]}
    assert sums(who, "provider", "&provider=brave")["brave"][:2] == [3, 55_000]
