"""The credit ledger against a tiny model of it: any sequence of verbs, audited after each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from app.core import clock
from app.core.identifiers import new_id
from app.core.unit_of_work import unit_of_work
from app.credits import audit, budget, service
from app.credits.models import CreditAccount
from app.credits.service import HoldState, Outcome
from app.errors import InsufficientCredits, RateLimited
from app.extensions import db
from tests.support.ledger import clear, ledger_app, read, statements, unit

APP = ledger_app("sqlite://")
EXPIRED = timedelta(0)
amounts = st.integers(0, 40)


@dataclass
class Held:
    """What the model knows of a hold."""

    account: str
    amount: int
    state: HoldState = HoldState.HELD
    charged: int = 0
    renewed: bool = False


class Ledger(RuleBasedStateMachine):
    """The model: per account what was granted, and its holds; everything else is derived."""

    accounts = Bundle("accounts")
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.context = APP.app_context()
        self.context.push()
        clear()
        self.granted: dict[str, int] = {}
        self.references: set[tuple[str, int]] = set()
        self.held: dict[str, Held] = {}

    def teardown(self) -> None:
        self.context.pop()

    def spent(self, account: str) -> int:
        return sum(hold.charged for hold in self.held.values() if hold.account == account)

    def open(self, account: str) -> int:
        return sum(
            hold.amount
            for hold in self.held.values()
            if hold.account == account and hold.state is HoldState.HELD
        )

    def available(self, account: str) -> int:
        return self.granted[account] - self.spent(account) - self.open(account)

    def end(self, outcome: Outcome, cost: int, state: HoldState, *, sources: set[HoldState]) -> None:
        """Let the model end a hold as the ledger should have, and compare the outcomes."""
        hold = self.held[outcome.hold_id]
        assert (outcome.before, outcome.account_id) == (hold.state, hold.account)
        if hold.state in sources:
            reach = self.available(hold.account) + hold.charged
            reach += hold.amount if hold.state is HoldState.HELD else 0
            hold.charged = min(cost, reach)
            assert outcome.unpaid_nanos == cost - hold.charged
            hold.state = state
        assert (outcome.state, outcome.charged_nanos) == (hold.state, hold.charged)

    @rule(target=accounts)
    def open_account(self) -> str:
        account = new_id()
        unit(service.open_account, account)
        self.granted[account] = 0
        return account

    @rule(account=accounts, nanos=amounts, number=st.integers(0, 3))
    def grant(self, account: str, nanos: int, number: int) -> None:
        first = (account, number) not in self.references and nanos > 0
        assert unit(service.grant, account, nanos, reference=f"{account}:{number}") == first
        if first:
            self.references.add((account, number))
            self.granted[account] += nanos

    @rule(target=holds, account=accounts, nanos=amounts, least=st.none() | amounts)
    def hold(self, account: str, nanos: int, least: int | None) -> object:
        available, hold_id = self.available(account), new_id()
        holdable = min(nanos, available)
        needed = nanos if least is None else min(least, nanos)
        if available < nanos and (holdable == 0 or holdable < needed):
            with pytest.raises(InsufficientCredits) as refusal:
                unit(service.hold, account, nanos, hold_id=hold_id, lease=EXPIRED, at_least_nanos=least)
            assert refusal.value.details["credits_usd"] * 10**9 == available
            return multiple()
        made = unit(service.hold, account, nanos, hold_id=hold_id, lease=EXPIRED, at_least_nanos=least)
        assert made.amount_nanos == holdable
        self.held[hold_id] = Held(account, holdable)
        return hold_id

    @rule(hold_id=holds, nanos=amounts)
    def hold_again(self, hold_id: str, nanos: int) -> None:
        again = unit(service.hold, self.held[hold_id].account, nanos, hold_id=hold_id, lease=EXPIRED)
        assert again.amount_nanos == self.held[hold_id].amount

    @rule(target=holds, account=accounts, nanos=amounts)
    def charge(self, account: str, nanos: int) -> object:
        charge_id = new_id()
        if self.available(account) < nanos:
            with pytest.raises(InsufficientCredits):
                unit(service.charge, account, nanos, charge_id=charge_id)
            return multiple()
        unit(service.charge, account, nanos, charge_id=charge_id)
        self.held[charge_id] = Held(account, nanos, HoldState.SETTLED, nanos)
        return charge_id

    @rule(hold_id=holds, cost=st.integers(0, 90))
    def settle(self, hold_id: str, cost: int) -> None:
        outcome = unit(service.settle, hold_id, cost)
        self.end(outcome, cost, HoldState.SETTLED, sources={HoldState.HELD, HoldState.LAPSED})

    @rule(hold_id=holds)
    def release(self, hold_id: str) -> None:
        outcome = unit(service.release, hold_id)
        self.end(outcome, 0, HoldState.RELEASED, sources={HoldState.HELD, HoldState.LAPSED})

    @rule(hold_id=holds, estimate=st.integers(0, 90))
    def lapse(self, hold_id: str, estimate: int) -> None:
        outcome = unit(service.lapse, hold_id, estimate)
        may_lapse = set() if self.held[hold_id].renewed else {HoldState.HELD}
        self.end(outcome, estimate, HoldState.LAPSED, sources=may_lapse)

    @rule(hold_id=holds)
    def refund(self, hold_id: str) -> None:
        outcome = unit(service.refund, hold_id)
        self.end(outcome, 0, HoldState.RELEASED, sources={HoldState.SETTLED})

    @rule(hold_id=consumes(holds))
    def renew(self, hold_id: str) -> None:
        hold = self.held[hold_id]
        assert unit(service.renew, hold_id, lease=timedelta(hours=1)) == (hold.state is HoldState.HELD)
        hold.renewed = True
        self.lapse(hold_id, 1)

    @invariant()
    def every_account_has_what_it_was_granted_less_what_it_spent(self) -> None:
        assert read(audit.check) == []
        for account, balance in read(service.balances, list(self.granted)).items():
            assert balance.granted_nanos == self.granted[account]
            assert balance.spent_nanos == self.spent(account)
            assert balance.held_nanos == self.open(account)
            assert balance.available_nanos == self.available(account) >= 0
            assert balance.credits_nanos == balance.granted_nanos - balance.spent_nanos

    @invariant()
    def the_sweep_finds_open_holds_without_a_lease_and_no_others(self) -> None:
        found = {hold.id for hold in read(service.expired_holds, clock.now(), 1000)}
        assert found == {
            hold_id
            for hold_id, hold in self.held.items()
            if hold.state is HoldState.HELD and not hold.renewed
        }


TestLedger = Ledger.TestCase
# Shrinking a failure takes minutes, in which the test would time out: the steps as found are shown instead.
TestLedger.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture
def account() -> Iterator[str]:
    with APP.app_context():
        clear()
        owner = new_id()
        unit(service.open_account, owner)
        unit(service.grant, owner, 1000, reference="initial")
        yield owner


def test_a_refused_hold_leaves_no_trace_even_when_its_unit_goes_on(account: str) -> None:
    with unit_of_work():
        with pytest.raises(InsufficientCredits):
            service.hold(account, 1001, hold_id=new_id(), lease=EXPIRED)
        service.hold(account, 1000, hold_id=new_id(), lease=EXPIRED)
    assert read(audit.check) == []
    assert read(service.balance, account).held_nanos == 1000


def test_a_unit_that_fails_after_a_hold_gives_it_back(account: str) -> None:
    def fail() -> None:
        with unit_of_work():
            service.hold(account, 500, hold_id=new_id(), lease=EXPIRED)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read(service.balance, account).available_nanos == 1000
    assert read(audit.check) == []


def test_a_hold_costs_the_same_with_any_history(account: str) -> None:
    def cost() -> int:
        with statements() as seen:
            unit(service.settle, unit(service.hold, account, 2, hold_id=new_id(), lease=EXPIRED).id, 1)
        return len(seen)

    first = cost()
    for _ in range(200):
        unit(service.release, unit(service.hold, account, 1, hold_id=new_id(), lease=EXPIRED).id)
    assert cost() == first == 6


@pytest.mark.parametrize(
    "damage",
    [
        {"available_nanos": CreditAccount.available_nanos - 1, "held_nanos": CreditAccount.held_nanos + 1},
        {
            "available_nanos": CreditAccount.available_nanos + 1,
            "granted_nanos": CreditAccount.granted_nanos + 1,
        },
        {"available_nanos": CreditAccount.available_nanos - 1, "spent_nanos": CreditAccount.spent_nanos + 1},
    ],
)
def test_the_audit_sees_every_sum_that_is_off_by_one(account: str, damage: dict[str, int]) -> None:
    assert read(audit.check) == []
    unit(lambda: _damage(account, damage))
    assert any(account in sentence for sentence in read(audit.check))


@pytest.mark.parametrize("damage", [{"available_nanos": 999}, {"held_nanos": -1}, {"spent_nanos": 5}])
def test_the_database_itself_refuses_a_row_that_does_not_add_up(account: str, damage: dict[str, int]) -> None:
    with pytest.raises(IntegrityError):
        unit(lambda: _damage(account, damage))


def _damage(account: str, values: dict[str, int]) -> None:
    with_account = update(CreditAccount).where(CreditAccount.id == account)
    db.session.execute(with_account.values(**values).execution_options(synchronize_session=False))


def test_the_day_s_budget_is_given_out_to_the_last_nano_and_renewed_at_midnight(account: str) -> None:
    assert account
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    unit(budget.take, 60, limit_nanos=100, now=noon)
    unit(budget.take, 40, limit_nanos=100, now=noon)
    with pytest.raises(RateLimited) as refusal:
        unit(budget.take, 1, limit_nanos=100, now=noon)
    assert refusal.value.retry_after_seconds == 12 * 3600 + 1
    unit(budget.take, 100, limit_nanos=100, now=noon + timedelta(hours=12))


def test_one_grant_larger_than_the_day_s_budget_is_refused(account: str) -> None:
    assert account
    with pytest.raises(RateLimited):
        unit(budget.take, 101, limit_nanos=100)
    unit(budget.take, 100, limit_nanos=100)


def test_without_a_budget_nothing_is_counted(account: str) -> None:
    assert account
    with statements() as seen:
        unit(budget.take, 10**18, limit_nanos=None)
    assert seen == []


def test_a_budget_of_nothing_gives_out_nothing(account: str) -> None:
    assert account
    with pytest.raises(RateLimited):
        unit(budget.take, 1, limit_nanos=0)
