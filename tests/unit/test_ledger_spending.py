"""Spending holds against a list of movements: limits, windows and counters hold whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from sqlalchemy import update

from app.core.chains import Family
from app.core.identifiers import new_id
from app.core.unit_of_work import unit_of_work
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
from app.extensions import db
from app.spending import audit, policy, service
from app.spending.models import SpendingAccount
from app.spending.service import Changes, HoldState
from tests.support.ledger import clear, ledger_app, read, statements, unit

APP = ledger_app("sqlite://")
AGENT = new_id()
USD = 10**9
LIMITS = {
    "daily_limit_nanos": 20,
    "weekly_limit_nanos": 40,
    "monthly_limit_nanos": 60,
    "per_tx_limit_nanos": 15,
}
ADDRESS = "0x52908400098527886E0F7030069857D2E4169EE7"
_START = datetime(2028, 2, 25, 23, 59, tzinfo=UTC)


@dataclass
class Movement:
    """What the model knows of a movement."""

    made_on: date
    amount: int
    state: HoldState


class Spending(RuleBasedStateMachine):
    """One wallet, a clock that moves over a leap day and month ends, and a list of movements."""

    movements = Bundle("movements")

    def __init__(self) -> None:
        super().__init__()
        self.context = APP.app_context()
        self.context.push()
        clear()
        self.wallet, self.now = new_id(), _START
        unit(service.open_account, self.wallet, new_id())
        # The account counts from the model's clock on, not from the machine's.
        unit(lambda: db.session.execute(update(SpendingAccount).values(counted_on=_START.date())))
        unit(service.set_default, self.wallet, **LIMITS)
        self.made: dict[str, Movement] = {}

    def teardown(self) -> None:
        self.context.pop()

    def counted(self) -> tuple[int, int, int]:
        today = self.now.date()
        counting = [m for m in self.made.values() if m.state is not HoldState.RELEASED]
        return (
            sum(m.amount for m in counting if m.made_on == today),
            sum(m.amount for m in counting if m.made_on.isocalendar()[:2] == today.isocalendar()[:2]),
            sum(m.amount for m in counting if (m.made_on.year, m.made_on.month) == (today.year, today.month)),
        )

    @rule(hours=st.sampled_from((1, 7, 24, 24 * 3, 24 * 8)))
    def time_passes(self, hours: int) -> None:
        self.now += timedelta(hours=hours)

    @rule(target=movements, amount=st.integers(0, 18))
    def hold(self, amount: int) -> object:
        day, week, month = self.counted()
        fits = amount <= 15 and day + amount <= 20 and week + amount <= 40 and month + amount <= 60
        reference = new_id()
        if not fits:
            with pytest.raises(ServiceError):
                self.check(amount)
            with pytest.raises(ServiceError):
                _hold(self.wallet, amount, reference=reference, now=self.now)
            return multiple()
        self.check(amount)
        for _ in range(2):
            held = _hold(self.wallet, amount, reference=reference, now=self.now)
            assert (held.amount_nanos, held.made_on, held.state) == (amount, self.now.date(), HoldState.HELD)
        self.made[reference] = Movement(self.now.date(), amount, HoldState.HELD)
        return reference

    def check(self, amount: int) -> None:
        read(
            service.check, self.wallet, value_nanos=amount, now=self.now, recipient=ADDRESS, family=Family.EVM
        )

    @rule(reference=movements)
    def spend(self, reference: str) -> None:
        self.move(service.spend, reference, {HoldState.HELD}, HoldState.SPENT)

    @rule(reference=movements)
    def release(self, reference: str) -> None:
        self.move(service.release, reference, {HoldState.HELD}, HoldState.RELEASED)

    @rule(reference=movements)
    def unspend(self, reference: str) -> None:
        self.move(service.unspend, reference, {HoldState.SPENT, HoldState.RELEASED}, HoldState.HELD)

    def move(self, verb: object, reference: str, sources: set[HoldState], target: HoldState) -> None:
        movement = self.made[reference]
        assert callable(verb)
        assert unit(verb, reference, now=self.now) == (movement.state in sources)
        if movement.state in sources:
            movement.state = target

    @invariant()
    def what_counts_is_what_was_made_and_not_given_back(self) -> None:
        standing = read(service.standing, self.wallet, self.now)
        assert (
            standing.today.spent_nanos,
            standing.week.spent_nanos,
            standing.month.spent_nanos,
        ) == self.counted()
        assert standing.today.remaining_nanos == max(0, 20 - self.counted()[0])
        assert read(audit.check, self.now) == []


TestSpending = Spending.TestCase
# Shrinking a failure takes minutes, in which the test would time out: the steps as found are shown instead.
TestSpending.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture
def wallet() -> Iterator[str]:
    with APP.app_context():
        clear()
        wallet = new_id()
        unit(service.open_account, wallet, AGENT)
        yield wallet
        assert read(audit.check) == []


def _hold(
    wallet: str, nanos: int | None, *, reference: str | None = None, now: datetime | None = None
) -> service.Hold:
    return unit(
        service.hold,
        wallet,
        reference=reference or new_id(),
        value_nanos=nanos,
        recipient=ADDRESS,
        family=Family.EVM,
        now=now,
    )


def test_a_hold_costs_the_same_with_any_history(wallet: str) -> None:
    unit(service.set_default, wallet)

    def cost() -> int:
        with statements() as seen:
            _hold(wallet, 0)
        return len(seen)

    first = cost()
    for _ in range(300):
        _hold(wallet, 0)
    assert cost() == first == 4


def test_a_clock_that_is_behind_opens_no_second_day(wallet: str) -> None:
    unit(service.set_default, wallet)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    _hold(wallet, 50 * USD, now=midnight)
    _hold(wallet, 50 * USD, now=midnight - timedelta(seconds=1))
    for moment in (midnight, midnight - timedelta(seconds=1)):
        with pytest.raises(DailyLimitExceeded):
            _hold(wallet, 1, now=moment)


def test_a_refused_hold_leaves_no_trace_even_when_its_unit_goes_on(wallet: str) -> None:
    unit(service.set_default, wallet)
    reference = new_id()
    with unit_of_work():
        with pytest.raises(PerTxLimitExceeded):
            service.hold(wallet, value_nanos=51 * USD, reference=reference, recipient=None, family=None)
        service.hold(wallet, value_nanos=50 * USD, reference=reference, recipient=None, family=None)
    assert read(service.standing, wallet).today.spent_nanos == 50 * USD


def test_without_a_price_a_wallet_with_limits_stays_and_one_without_moves(wallet: str) -> None:
    _hold(wallet, None)
    unit(service.set_default, wallet)
    with pytest.raises(PriceUnavailable):
        _hold(wallet, None)
    assert read(service.standing, wallet).today.spent_nanos == 0


def test_what_moved_before_there_were_limits_counts_against_them(wallet: str) -> None:
    _hold(wallet, 5000 * USD)
    unit(service.set_default, wallet)
    with pytest.raises(DailyLimitExceeded) as refusal:
        _hold(wallet, 1)
    assert refusal.value.details["spent_usd"] == 5000
    assert refusal.value.details["remaining_usd"] == 0


def test_a_value_that_no_column_can_count_is_refused_not_overflowed(wallet: str) -> None:
    with pytest.raises(InvalidInput):
        _hold(wallet, 2**255)
    with pytest.raises(InvalidInput):
        read(service.check, wallet, value_nanos=2**255, recipient=None, family=None)


def _set_lock(wallet: str, *, locked: bool) -> service.ControlsView:
    return unit(service.put_controls, wallet, Changes(locked=locked), by_agent=False)


def test_freezing_an_agent_stops_all_its_wallets_and_those_made_frozen_too(wallet: str) -> None:
    second, third, stranger = new_id(), new_id(), new_id()
    unit(service.open_account, second, AGENT)
    unit(service.open_account, stranger, new_id())
    _hold(wallet, 1, reference="in flight")
    assert unit(service.freeze, AGENT) == 2
    unit(service.open_account, third, AGENT, frozen=True)
    for frozen in (wallet, second, third):
        with pytest.raises(WalletFrozen):
            _hold(frozen, 1)
        with pytest.raises(WalletFrozen):
            unit(service.assert_deletable, frozen)
        assert read(service.standing, frozen).frozen
    assert unit(service.spend, "in flight")
    _hold(stranger, 1)
    assert unit(service.unfreeze, AGENT) == 3
    _hold(third, 1)


def test_controls_are_created_with_nothing_and_updated_with_what_is_sent(wallet: str) -> None:
    assert read(service.controls_of, [wallet]) == {}
    assert read(service.standing, wallet).controls is None
    made = unit(service.put_controls, wallet, Changes(daily_limit_nanos=5), by_agent=True)
    assert (made.daily_limit_nanos, made.weekly_limit_nanos, made.allowed_addresses) == (5, 0, ())
    changed = unit(
        service.put_controls,
        wallet,
        Changes(allowed_addresses=[ADDRESS, ADDRESS], weekly_limit_nanos=9),
        by_agent=True,
    )
    assert (changed.daily_limit_nanos, changed.weekly_limit_nanos) == (5, 9)
    assert changed.allowed_addresses == (ADDRESS,)
    emptied = unit(
        service.put_controls, wallet, Changes(allowed_addresses=[], daily_limit_nanos=0), by_agent=True
    )
    assert (emptied.allowed_addresses, emptied.daily_limit_nanos) == ((), 0)
    assert read(service.controls_of, [wallet, new_id()]) == {wallet: emptied}


def test_locked_controls_give_way_to_the_owner_and_not_to_the_agent(wallet: str) -> None:
    unit(service.set_default, wallet)
    _set_lock(wallet, locked=True)
    for loosening in (
        Changes(daily_limit_nanos=101 * USD),
        Changes(monthly_limit_nanos=0),
        Changes(per_tx_limit_nanos=1, weekly_limit_nanos=0),
    ):
        with pytest.raises(ControlsLocked):
            unit(service.put_controls, wallet, loosening, by_agent=True)
    with pytest.raises(ControlsLocked):
        unit(service.assert_deletable, wallet)
    unit(service.assert_deletable, wallet, by_agent=False)
    tightened = unit(service.put_controls, wallet, Changes(daily_limit_nanos=1, locked=False), by_agent=True)
    assert (tightened.daily_limit_nanos, tightened.locked) == (1, True)
    with pytest.raises(ControlsLocked):
        unit(service.put_controls, wallet, Changes(daily_limit_nanos=2), by_agent=True)
    assert unit(service.put_controls, wallet, Changes(daily_limit_nanos=0), by_agent=False).locked
    assert not _set_lock(wallet, locked=False).locked
    unit(service.put_controls, wallet, Changes(weekly_limit_nanos=0), by_agent=True)


def test_the_agent_s_own_key_cannot_lock_what_is_not_locked(wallet: str) -> None:
    assert not unit(service.put_controls, wallet, Changes(locked=True), by_agent=True).locked


def test_a_new_wallet_is_no_way_round_locked_controls(wallet: str) -> None:
    unit(service.set_default, wallet)
    free, bound = new_id(), new_id()
    unit(service.open_account, free, AGENT)
    assert unit(service.inherit, free, wallet) is None
    _set_lock(wallet, locked=True)
    unit(service.open_account, bound, AGENT)
    inherited = unit(service.inherit, bound, wallet)
    assert inherited is not None
    assert (inherited.locked, inherited.daily_limit_nanos) == (True, policy.DEFAULT.daily_limit_nanos)
    with pytest.raises(ControlsLocked):
        unit(service.put_controls, bound, Changes(daily_limit_nanos=0), by_agent=True)


def test_a_closed_account_leaves_nothing_and_holds_nothing(wallet: str) -> None:
    unit(service.set_default, wallet)
    _hold(wallet, 5, reference="old")
    unit(service.close_account, wallet)
    with pytest.raises(NotFound):
        _hold(wallet, 5)
    for verb in (service.spend, service.release, service.unspend):
        assert unit(verb, "old") is False
    with pytest.raises(NotFound):
        unit(service.lock_account, wallet)
    with pytest.raises(NotFound):
        unit(service.assert_deletable, wallet)
    with pytest.raises(NotFound):
        read(service.standing, wallet)
    with pytest.raises(NotFound):
        read(service.check, wallet, value_nanos=1, recipient=None, family=None)


def test_unlimited_windows_say_so_and_when_they_end(wallet: str) -> None:
    unit(service.put_controls, wallet, Changes(weekly_limit_nanos=7), by_agent=True)
    _hold(wallet, 0)
    standing = read(service.standing, wallet, datetime(2026, 11, 18, 15, tzinfo=UTC) + timedelta(days=3650))
    assert (standing.today.unlimited, standing.today.remaining_nanos) == (True, 0)
    assert (standing.week.unlimited, standing.week.remaining_nanos) == (False, 7)
    assert standing.today.resets_at == datetime(2036, 11, 16, tzinfo=UTC)
    assert standing.week.resets_at == datetime(2036, 11, 17, tzinfo=UTC)
    assert standing.month.resets_at == datetime(2036, 12, 1, tzinfo=UTC)


def test_the_audit_sees_every_counter_that_is_off_by_one(wallet: str) -> None:
    _hold(wallet, 5)
    for column in ("day_nanos", "week_nanos", "month_nanos"):
        counter = getattr(SpendingAccount, column)
        unit(lambda: db.session.execute(update(SpendingAccount).values({counter: counter + 1})))  # noqa: B023
        assert any(wallet in sentence for sentence in read(audit.check))
        unit(lambda: db.session.execute(update(SpendingAccount).values({counter: counter - 1})))  # noqa: B023
