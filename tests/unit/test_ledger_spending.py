"""Spending holds against a list of movements: limits, windows and counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

import pytest
import time_machine
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from app.core.chains import Family
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.errors import (
    ControlsLocked,
    DailyLimitExceeded,
    InvalidInput,
    NotFound,
    PerTxLimitExceeded,
    PriceUnavailable,
    ServiceError,
    WalletFrozen,
)
from app.spending import accounts, audit, controls, holds, policy
from app.spending.controls import ControlsChange
from app.spending.holds import SpendingHoldState
from app.spending.models import SpendingAccount
from app.spending.policy import DEFAULT, Controls, SpendingRequest
from tests.support.ledger import clear, ledger_app, read, statements, unit

APP = ledger_app("sqlite://")
AGENT = new_id()
USD = 10**9
LIMITS = {"daily_limit_nanos": 20, "weekly_limit_nanos": 40, "monthly_limit_nanos": 60, "per_tx_limit_nanos": 15}
ADDRESS = "0x52908400098527886E0F7030069857D2E4169EE7"
_START = datetime(2028, 2, 25, 23, 59, tzinfo=UTC)


def set_default(wallet_id: str, **limits_nanos: int) -> None:
    """Give a wallet that was opened without controls the default ones."""
    unit(accounts.advance_controls_version, [wallet_id])
    unit(controls.insert_new, wallet_id, replace(DEFAULT, **limits_nanos))


@dataclass
class Movement:
    """A movement of the model."""

    made_on: date
    amount: int
    state: SpendingHoldState


class Spending(RuleBasedStateMachine):
    """One wallet, a clock that moves over a leap day and month ends, and a list of movements."""

    movements = Bundle("movements")

    def __init__(self) -> None:
        super().__init__()
        self.context = APP.app_context()
        self.context.push()
        clear()
        self.wallet, self.now = new_id(), _START
        self.clock = time_machine.travel(_START, tick=False)
        self.traveller = self.clock.start()
        unit(accounts.open_account, self.wallet, new_id())
        set_default(self.wallet, **LIMITS)
        self.made: dict[str, Movement] = {}

    def teardown(self) -> None:
        self.clock.stop()
        self.context.pop()

    def counted(self) -> tuple[int, int, int]:
        today = self.now.date()
        counting = [m for m in self.made.values() if m.state is not SpendingHoldState.RELEASED]
        return (
            sum(m.amount for m in counting if m.made_on == today),
            sum(m.amount for m in counting if m.made_on.isocalendar()[:2] == today.isocalendar()[:2]),
            sum(m.amount for m in counting if (m.made_on.year, m.made_on.month) == (today.year, today.month)),
        )

    @rule(hours=st.sampled_from((1, 7, 24, 24 * 3, 24 * 8)))
    def time_passes(self, hours: int) -> None:
        self.now += timedelta(hours=hours)
        self.traveller.move_to(self.now)

    @rule(target=movements, amount=st.integers(0, 18))
    def hold(self, amount: int) -> object:
        day, week, month = self.counted()
        fits = amount <= 15 and day + amount <= 20 and week + amount <= 40 and month + amount <= 60
        reference = new_id()
        if not fits:
            with pytest.raises(ServiceError):
                self.check(amount)
            with pytest.raises(ServiceError):
                _hold(self.wallet, amount, reference=reference)
            return multiple()
        self.check(amount)
        for _ in range(2):
            _hold(self.wallet, amount, reference=reference)
        self.made[reference] = Movement(self.now.date(), amount, SpendingHoldState.HELD)
        return reference

    def check(self, amount: int) -> None:
        read(holds.check, self.wallet, SpendingRequest(amount, ADDRESS, Family.EVM))

    @rule(reference=movements)
    def spend(self, reference: str) -> None:
        self.move(holds.spend, reference, {SpendingHoldState.HELD}, SpendingHoldState.SPENT)

    @rule(reference=movements)
    def release(self, reference: str) -> None:
        self.move(holds.release, reference, {SpendingHoldState.HELD}, SpendingHoldState.RELEASED)

    @rule(reference=movements)
    def unspend(self, reference: str) -> None:
        self.move(
            holds.restore_hold, reference, {SpendingHoldState.SPENT, SpendingHoldState.RELEASED}, SpendingHoldState.HELD
        )

    def move(self, verb: object, reference: str, sources: set[SpendingHoldState], target: SpendingHoldState) -> None:
        movement = self.made[reference]
        assert callable(verb)
        assert unit(verb, reference) == (movement.state in sources)
        if movement.state in sources:
            movement.state = target

    @invariant()
    def what_counts_is_what_was_made_and_not_given_back(self) -> None:
        standing = read(controls.status_of, self.wallet)
        assert (standing.today.spent_nanos, standing.week.spent_nanos, standing.month.spent_nanos) == self.counted()
        assert standing.today.remaining_nanos == max(0, 20 - self.counted()[0])
        assert read(audit.check) == []


TestSpending = Spending.TestCase
# Shrinking takes minutes and would exceed the timeout, so the steps are shown as found.
TestSpending.settings = settings(
    max_examples=15, stateful_step_count=30, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


@pytest.fixture
def wallet() -> Iterator[str]:
    with APP.app_context():
        clear()
        wallet = new_id()
        unit(accounts.open_account, wallet, AGENT)
        yield wallet
        assert read(audit.check) == []


def _hold(wallet: str, nanos: int | None, *, reference: str | None = None) -> None:
    request = SpendingRequest(nanos, ADDRESS, Family.EVM)
    unit(holds.hold, wallet, request, reference=reference or new_id())


def test_a_hold_costs_the_same_with_any_history(wallet: str) -> None:
    set_default(wallet)

    def cost() -> int:
        with statements() as seen:
            _hold(wallet, 0)
        return len(seen)

    first = cost()
    for _ in range(300):
        _hold(wallet, 0)
    assert cost() == first == 4


def test_a_clock_that_is_behind_opens_no_second_day(wallet: str) -> None:
    set_default(wallet)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    before = midnight - timedelta(seconds=1)
    for moment in (midnight, before):
        with time_machine.travel(moment, tick=False):
            _hold(wallet, 50 * USD)
    for moment in (midnight, before):
        with time_machine.travel(moment, tick=False), pytest.raises(DailyLimitExceeded):
            _hold(wallet, 1)


def test_a_refused_hold_leaves_nothing_even_if_its_unit_commits(wallet: str) -> None:
    set_default(wallet)
    reference = new_id()
    with unit_of_work() as session:
        with pytest.raises(PerTxLimitExceeded):
            holds.hold(session, wallet, SpendingRequest(51 * USD), reference=reference)
        holds.hold(session, wallet, SpendingRequest(50 * USD), reference=reference)
    assert read(controls.status_of, wallet).today.spent_nanos == 50 * USD


def test_the_hold_of_another_wallet_permits_nothing(wallet: str) -> None:
    other = new_id()
    unit(accounts.open_account, other, new_id(), frozen=False)
    unit(holds.hold, wallet, SpendingRequest(1), reference="shared")
    with pytest.raises(IntegrityError):
        unit(holds.hold, other, SpendingRequest(1), reference="shared")
    with pytest.raises(IntegrityError):
        unit(holds.record_without_limits, other, reference="shared", value_nanos=2)
    unit(holds.record_without_limits, new_id(), reference="deleted", value_nanos=2)
    assert read(audit.check) == []


def test_without_a_price_only_a_wallet_without_limits_can_spend(wallet: str) -> None:
    _hold(wallet, None)
    set_default(wallet)
    with pytest.raises(PriceUnavailable):
        _hold(wallet, None)
    assert read(controls.status_of, wallet).today.spent_nanos == 0


def test_spending_before_limits_were_set_counts_against_them(wallet: str) -> None:
    _hold(wallet, 5000 * USD)
    set_default(wallet)
    with pytest.raises(DailyLimitExceeded) as refusal:
        _hold(wallet, 1)
    assert refusal.value.details["spent_usd"] == 5000
    assert refusal.value.details["remaining_usd"] == 0


def test_a_value_too_large_for_its_column_is_refused(wallet: str) -> None:
    with pytest.raises(InvalidInput):
        _hold(wallet, 2**255)
    with pytest.raises(InvalidInput):
        read(holds.check, wallet, SpendingRequest(2**255))


def _set_lock(wallet: str, *, locked: bool) -> Controls:
    [done] = unit(controls.replace_controls, [wallet], ControlsChange(locked=locked))
    return done.new


def test_freezing_an_agent_freezes_all_present_and_future_wallets(wallet: str) -> None:
    second, third, other_wallet = new_id(), new_id(), new_id()
    unit(accounts.open_account, second, AGENT)
    unit(accounts.open_account, other_wallet, new_id())
    _hold(wallet, 1, reference="in flight")
    unit(accounts.set_frozen, AGENT, frozen=True)
    unit(accounts.open_account, third, AGENT, frozen=True)
    for frozen in (wallet, second, third):
        with pytest.raises(WalletFrozen):
            _hold(frozen, 1)
        with pytest.raises(WalletFrozen):
            unit(controls.assert_deletable, frozen)
        assert read(controls.status_of, frozen).frozen
    assert unit(holds.spend, "in flight")
    _hold(other_wallet, 1)
    unit(accounts.set_frozen, AGENT, frozen=False)
    _hold(third, 1)


def _put(wallet: str, changes: ControlsChange) -> Controls:
    return unit(controls.put_controls, wallet, changes)[0]


def test_controls_are_created_with_zeros_and_updated_with_the_given_fields(wallet: str) -> None:
    assert read(controls.controls_of, [wallet]) == {}
    assert read(controls.status_of, wallet).controls is None
    made = _put(wallet, ControlsChange(daily_limit_nanos=5))
    assert (made.daily_limit_nanos, made.weekly_limit_nanos, made.allowed_addresses) == (5, 0, ())
    changed = _put(wallet, ControlsChange(allowed_addresses=[ADDRESS, ADDRESS], weekly_limit_nanos=9))
    assert (changed.daily_limit_nanos, changed.weekly_limit_nanos) == (5, 9)
    assert changed.allowed_addresses == (ADDRESS,)
    emptied = _put(wallet, ControlsChange(allowed_addresses=[], daily_limit_nanos=0))
    assert (emptied.allowed_addresses, emptied.daily_limit_nanos) == ((), 0)
    assert read(controls.controls_of, [wallet, new_id()]) == {wallet: emptied}


def test_a_change_has_no_values_but_controls_and_keeps_those_that_it_does_not_name(wallet: str) -> None:
    _put(wallet, ControlsChange(daily_limit_nanos=5, allowed_domains=["shop.example"]))
    changed = _put(wallet, ControlsChange(daily_limit_nanos=None, weekly_limit_nanos=9, allowed_domains=None))
    assert (changed.daily_limit_nanos, changed.weekly_limit_nanos) == (5, 9)
    assert changed.allowed_domains == ("shop.example",)
    with pytest.raises(TypeError):
        ControlsChange(monthly_limit=1)  # type: ignore[call-arg]


def test_locked_controls_can_be_loosened_by_the_owner_but_not_by_the_agent(wallet: str) -> None:
    set_default(wallet)
    _set_lock(wallet, locked=True)
    for loosening in (
        ControlsChange(daily_limit_nanos=101 * USD),
        ControlsChange(monthly_limit_nanos=0),
        ControlsChange(per_tx_limit_nanos=1, weekly_limit_nanos=0),
    ):
        with pytest.raises(ControlsLocked):
            _put(wallet, loosening)
    with pytest.raises(ControlsLocked):
        unit(controls.assert_deletable, wallet)
    unit(controls.assert_deletable, wallet, by_agent=False)
    tightened = _put(wallet, ControlsChange(daily_limit_nanos=1, locked=False))
    assert (tightened.daily_limit_nanos, tightened.locked) == (1, True)
    with pytest.raises(ControlsLocked):
        _put(wallet, ControlsChange(daily_limit_nanos=2))
    [done] = unit(controls.replace_controls, [wallet], ControlsChange(daily_limit_nanos=0))
    assert done.new.locked
    assert not _set_lock(wallet, locked=False).locked
    _put(wallet, ControlsChange(weekly_limit_nanos=0))


def test_the_agent_s_own_key_cannot_lock_what_is_not_locked(wallet: str) -> None:
    assert not _put(wallet, ControlsChange(locked=True)).locked


def test_a_new_wallet_does_not_bypass_locked_controls(wallet: str) -> None:
    set_default(wallet)
    free, bound = new_id(), new_id()
    unit(accounts.open_account, free, AGENT)
    assert unit(controls.inherit, free, wallet) is None
    _set_lock(wallet, locked=True)
    unit(accounts.open_account, bound, AGENT)
    inherited = unit(controls.inherit, bound, wallet)
    assert inherited is not None
    assert (inherited.locked, inherited.daily_limit_nanos) == (True, policy.DEFAULT.daily_limit_nanos)
    with pytest.raises(ControlsLocked):
        _put(bound, ControlsChange(daily_limit_nanos=0))


def test_a_closed_account_leaves_no_rows_and_accepts_no_holds(wallet: str) -> None:
    set_default(wallet)
    _hold(wallet, 5, reference="old")
    unit(controls.close_account, wallet)
    with pytest.raises(NotFound):
        _hold(wallet, 5)
    for verb in (holds.spend, holds.release, holds.restore_hold):
        assert unit(verb, "old") is False
    with pytest.raises(NotFound):
        unit(accounts.lock_account, wallet)
    with pytest.raises(NotFound):
        unit(controls.assert_deletable, wallet)
    with pytest.raises(NotFound):
        read(controls.status_of, wallet)
    with pytest.raises(NotFound):
        read(holds.check, wallet, SpendingRequest(1))


def test_unlimited_windows_are_reported_with_their_ends(wallet: str) -> None:
    _put(wallet, ControlsChange(weekly_limit_nanos=7))
    _hold(wallet, 0)
    with time_machine.travel(datetime(2036, 11, 15, 15, tzinfo=UTC), tick=False):
        standing = read(controls.status_of, wallet)
    assert (standing.today.unlimited, standing.today.remaining_nanos) == (True, 0)
    assert (standing.week.unlimited, standing.week.remaining_nanos) == (False, 7)
    assert standing.today.resets_at == datetime(2036, 11, 16, tzinfo=UTC)
    assert standing.week.resets_at == datetime(2036, 11, 17, tzinfo=UTC)
    assert standing.month.resets_at == datetime(2036, 12, 1, tzinfo=UTC)


def test_the_audit_finds_every_counter_that_is_off_by_one(wallet: str) -> None:
    _hold(wallet, 5)
    for column in ("day_nanos", "week_nanos", "month_nanos"):
        counter = getattr(SpendingAccount, column)
        unit(lambda session: session.execute(update(SpendingAccount).values({counter: counter + 1})))  # noqa: B023
        assert any(wallet in sentence for sentence in read(audit.check))
        unit(lambda session: session.execute(update(SpendingAccount).values({counter: counter - 1})))  # noqa: B023
