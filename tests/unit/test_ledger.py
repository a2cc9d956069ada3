"""The credit ledger against a model: any sequence of calls, audited after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import time_machine
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, NoResultFound
from sqlalchemy.orm import Session

from app.core import clock
from app.core.identifiers import new_id
from app.credits import accounts, audit, holds
from app.credits.holds import CreditHoldState, HoldResult
from app.credits.models import CreditAccount
from app.db.unit_of_work import unit_of_work
from app.errors import InsufficientCredits, RateLimited
from tests.support.ledger import clear, ledger_app, read, statements, unit

APP = ledger_app("sqlite://")
EXPIRED = timedelta(0)
amounts = st.integers(0, 40)


@dataclass
class Held:
    """A hold of the model."""

    account: str
    amount: int
    state: CreditHoldState = CreditHoldState.HELD
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
            hold.amount for hold in self.held.values() if hold.account == account and hold.state is CreditHoldState.HELD
        )

    def available(self, account: str) -> int:
        return self.granted[account] - self.spent(account) - self.open(account)

    def end(self, outcome: HoldResult, cost: int, state: CreditHoldState, *, sources: set[CreditHoldState]) -> None:
        """End a hold in the model as the ledger should, and compare the outcomes."""
        hold = self.held[outcome.hold_id]
        assert (outcome.previous_state, outcome.account_id) == (hold.state, hold.account)
        if hold.state in sources:
            reach = self.available(hold.account) + hold.charged
            reach += hold.amount if hold.state is CreditHoldState.HELD else 0
            hold.charged = min(cost, reach)
            assert outcome.unpaid_nanos == cost - hold.charged
            hold.state = state
        assert (outcome.state, outcome.charged_nanos) == (hold.state, hold.charged)

    @rule(target=accounts)
    def open_account(self) -> str:
        account = new_id()
        unit(accounts.open_account, account)
        self.granted[account] = 0
        return account

    @rule(account=accounts, nanos=amounts, number=st.integers(0, 3))
    def grant(self, account: str, nanos: int, number: int) -> None:
        first = (account, number) not in self.references and nanos > 0
        assert unit(accounts.grant, account, nanos, reference=f"{account}:{number}") == first
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
                unit(holds.hold, account, nanos, hold_id=hold_id, lease=EXPIRED, minimum_nanos=least)
            assert refusal.value.details["credits_usd"] * 10**9 == available
            return multiple()
        made = unit(holds.hold, account, nanos, hold_id=hold_id, lease=EXPIRED, minimum_nanos=least)
        assert made == holdable
        self.held[hold_id] = Held(account, holdable)
        return hold_id

    @rule(hold_id=holds, nanos=amounts)
    def hold_again(self, hold_id: str, nanos: int) -> None:
        again = unit(holds.hold, self.held[hold_id].account, nanos, hold_id=hold_id, lease=EXPIRED)
        assert again == self.held[hold_id].amount

    @rule(hold_id=holds, cost=st.integers(0, 90))
    def settle(self, hold_id: str, cost: int) -> None:
        outcome = unit(holds.settle, hold_id, cost)
        self.end(outcome, cost, CreditHoldState.SETTLED, sources={CreditHoldState.HELD, CreditHoldState.LAPSED})

    @rule(hold_id=holds)
    def release(self, hold_id: str) -> None:
        outcome = unit(holds.release, hold_id)
        self.end(outcome, 0, CreditHoldState.RELEASED, sources={CreditHoldState.HELD, CreditHoldState.LAPSED})

    @rule(hold_id=holds, estimate=st.integers(0, 90))
    def lapse(self, hold_id: str, estimate: int) -> None:
        outcome = unit(holds.lapse, hold_id, estimate)
        may_lapse = set() if self.held[hold_id].renewed else {CreditHoldState.HELD}
        self.end(outcome, estimate, CreditHoldState.LAPSED, sources=may_lapse)

    @rule(hold_id=holds)
    def refund(self, hold_id: str) -> None:
        outcome = unit(holds.refund, hold_id)
        self.end(outcome, 0, CreditHoldState.RELEASED, sources=set(CreditHoldState) - {CreditHoldState.RELEASED})

    @rule(hold_id=consumes(holds))
    def renew(self, hold_id: str) -> None:
        hold = self.held[hold_id]
        assert unit(holds.renew, hold_id, lease=timedelta(hours=1)) == (hold.state is CreditHoldState.HELD)
        hold.renewed = True
        self.lapse(hold_id, 1)

    @invariant()
    def every_account_has_what_it_was_granted_less_what_it_spent(self) -> None:
        assert read(audit.check) == []
        for account, balance in read(accounts.balances, list(self.granted)).items():
            assert balance.granted_nanos == self.granted[account]
            assert balance.spent_nanos == self.spent(account)
            assert balance.held_nanos == self.open(account)
            assert balance.available_nanos == self.available(account) >= 0
            assert balance.credits_nanos == balance.granted_nanos - balance.spent_nanos

    @invariant()
    def the_sweep_finds_open_holds_without_a_lease_and_no_others(self) -> None:
        found = {hold.id for hold in read(holds.expired_holds, clock.now(), 1000)}
        assert found == {
            hold_id for hold_id, hold in self.held.items() if hold.state is CreditHoldState.HELD and not hold.renewed
        }


TestLedger = Ledger.TestCase
# Shrinking takes minutes and would exceed the timeout, so the steps are shown as found.
TestLedger.settings = settings(
    max_examples=15, stateful_step_count=30, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


@pytest.fixture
def account() -> Iterator[str]:
    with APP.app_context():
        clear()
        owner = new_id()
        unit(accounts.open_account, owner)
        unit(accounts.grant, owner, 1000, reference="initial")
        yield owner


def test_a_refused_hold_leaves_nothing_even_if_its_unit_commits(account: str) -> None:
    with unit_of_work() as session:
        with pytest.raises(InsufficientCredits):
            holds.hold(session, account, 1001, hold_id=new_id(), lease=EXPIRED)
        holds.hold(session, account, 1000, hold_id=new_id(), lease=EXPIRED)
    assert read(audit.check) == []
    assert read(accounts.balance, account).held_nanos == 1000


def test_a_hold_takes_what_is_left_down_to_the_last_nano_and_never_nothing(account: str) -> None:
    unit(holds.hold, account, 999, hold_id=new_id(), lease=EXPIRED)
    with pytest.raises(InsufficientCredits) as refusal:
        unit(holds.hold, account, 5, hold_id=new_id(), lease=EXPIRED, minimum_nanos=2)
    assert refusal.value.details == {"credits_usd": Decimal("1E-9"), "required_usd": Decimal("2E-9")}
    # A minimum above the amount itself is the amount.
    assert unit(holds.hold, account, 1, hold_id=new_id(), lease=EXPIRED, minimum_nanos=9) == 1
    with pytest.raises(InsufficientCredits):
        unit(holds.hold, account, 5, hold_id=new_id(), lease=EXPIRED, minimum_nanos=0)
    assert read(audit.check) == []


def test_the_last_nano_is_held_for_a_larger_amount(account: str) -> None:
    unit(holds.hold, account, 999, hold_id=new_id(), lease=EXPIRED)
    assert unit(holds.hold, account, 5, hold_id=new_id(), lease=EXPIRED, minimum_nanos=1) == 1


def test_open_holds_expire_at_the_end_of_their_lease_the_oldest_first(account: str) -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    ids = {}
    with time_machine.travel(noon, tick=False):
        for seconds in (3, 1, 2, 0):
            lease = timedelta(seconds=seconds)
            ids[seconds] = new_id()
            unit(holds.hold, account, 1, hold_id=ids[seconds], lease=lease)
        unit(holds.release, ids.pop(0))

    def expired(seconds: int, limit: int = 9) -> list[str]:
        found = read(holds.expired_holds, noon + timedelta(seconds=seconds), limit)
        return [hold.id for hold in found]

    assert expired(0) == []
    assert expired(1) == [ids[1]]
    assert expired(3) == [ids[1], ids[2], ids[3]]
    assert expired(3, limit=2) == [ids[1], ids[2]]


def test_an_account_that_was_never_opened_is_an_error_and_not_empty(account: str) -> None:
    unopened = new_id()
    uses: list[Callable[[Session], object]] = [
        lambda session: accounts.grant(session, unopened, 1, reference="unopened"),
        lambda session: holds.hold(session, unopened, 1, hold_id=new_id(), lease=EXPIRED),
    ]
    for use in uses:
        with pytest.raises(IntegrityError):
            unit(use)
    with pytest.raises(NoResultFound):
        read(accounts.balance, unopened)
    with pytest.raises(LookupError, match="no credits were ever held under"):
        unit(holds.settle, unopened, 1)
    assert read(accounts.balances, [account, unopened]).keys() == {account}
    assert read(audit.check) == []


def test_a_rolled_back_unit_releases_its_hold(account: str) -> None:
    def fail() -> None:
        with unit_of_work() as session:
            holds.hold(session, account, 500, hold_id=new_id(), lease=EXPIRED)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read(accounts.balance, account).available_nanos == 1000
    assert read(audit.check) == []


def _held(account: str, nanos: int) -> str:
    hold_id = new_id()
    unit(holds.hold, account, nanos, hold_id=hold_id, lease=EXPIRED)
    return hold_id


def test_a_hold_costs_the_same_with_any_history(account: str) -> None:
    def cost() -> int:
        with statements() as seen:
            unit(holds.settle, _held(account, 2), 1)
        return len(seen)

    first = cost()
    for _ in range(200):
        unit(holds.release, _held(account, 1))
    assert cost() == first == 7


@pytest.mark.parametrize(
    "damage",
    [
        {"available_nanos": CreditAccount.available_nanos - 1, "held_nanos": CreditAccount.held_nanos + 1},
        {"available_nanos": CreditAccount.available_nanos + 1, "granted_nanos": CreditAccount.granted_nanos + 1},
        {"available_nanos": CreditAccount.available_nanos - 1, "spent_nanos": CreditAccount.spent_nanos + 1},
    ],
)
def test_the_audit_finds_every_sum_that_is_off_by_one(account: str, damage: dict[str, int]) -> None:
    assert read(audit.check) == []
    unit(lambda session: _damage(session, account, damage))
    assert any(account in sentence for sentence in read(audit.check))


@pytest.mark.parametrize("damage", [{"available_nanos": 999}, {"held_nanos": -1}, {"spent_nanos": 5}])
def test_the_database_refuses_a_row_that_does_not_add_up(account: str, damage: dict[str, int]) -> None:
    with pytest.raises(IntegrityError):
        unit(lambda session: _damage(session, account, damage))


def _damage(session: Session, account: str, values: dict[str, int]) -> None:
    with_account = update(CreditAccount).where(CreditAccount.id == account)
    session.execute(with_account.values(**values).execution_options(synchronize_session=False))


def test_the_daily_budget_is_granted_to_the_last_nano_and_renewed_at_midnight(account: str) -> None:
    assert account
    with time_machine.travel(datetime(2026, 11, 21, 12, tzinfo=UTC), tick=False) as noon:
        unit(accounts.consume, 60, limit_nanos=100)
        unit(accounts.consume, 40, limit_nanos=100)
        with pytest.raises(RateLimited) as refusal:
            unit(accounts.consume, 1, limit_nanos=100)
        assert refusal.value.retry_after_seconds == 12 * 3600 + 1
        noon.shift(timedelta(hours=12))
        unit(accounts.consume, 100, limit_nanos=100)


def test_a_grant_larger_than_the_daily_budget_is_refused(account: str) -> None:
    assert account
    unit(accounts.consume, 0, limit_nanos=100)
    for _ in range(2):
        with pytest.raises(RateLimited):
            unit(accounts.consume, 101, limit_nanos=100)
        # From now on, there is a row of this day.
        unit(accounts.consume, 1, limit_nanos=100)
    unit(accounts.consume, 98, limit_nanos=100)


def test_a_budget_of_zero_grants_nothing(account: str) -> None:
    assert account
    with pytest.raises(RateLimited):
        unit(accounts.consume, 1, limit_nanos=0)
