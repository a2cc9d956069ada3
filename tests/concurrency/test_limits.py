"""Races for limits and credits: concurrent requests never exceed a limit or count an amount twice.

Run on both databases, which lock differently.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from app.core.chains import Family
from app.core.identifiers import new_id
from app.credits import accounts as credit_accounts
from app.credits import holds as credit_holds
from app.credits.holds import CreditHoldState
from app.db.unit_of_work import unit_of_work
from app.errors import DailyLimitExceeded, InsufficientCredits, NotFound, ServiceError, WalletFrozen
from app.extensions import db
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending import holds as spending_holds
from app.spending.controls import ControlsChange
from app.spending.models import SpendingHold
from app.spending.policy import ApprovedPayment, SpendingRequest
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from tests.support.ledger import ledger_app, race, read, unit, violations
from tests.support.servers import Postgres
from tests.support.waiting import wait_until

CONCURRENT = 16
ADDRESS = "0x52908400098527886E0F7030069857D2E4169EE7"
LEASE = timedelta(0)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Flask]:
    """An application on an empty database of each kind."""
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/ledger.sqlite"
        if request.param == "postgres":
            postgres: Postgres = request.getfixturevalue("postgres")
            name = f"ledger_{new_id().replace('-', '')}"
            url = postgres.create_database(name)
            stack.callback(postgres.drop_database, name)
        app = ledger_app(url)
        with app.app_context():
            yield app
            assert violations() == []
            db.engine.dispose()


def _wallet(*, daily_limit_nanos: int = 0, agent_id: str | None = None) -> str:
    wallet = new_id()
    unit(spending_accounts.open_account, wallet, agent_id or new_id())
    changes = ControlsChange(daily_limit_nanos=daily_limit_nanos)
    unit(spending_controls.put_controls, wallet, changes)
    return wallet


def _hold(wallet: str, nanos: int, *, reference: str | None = None) -> str:
    """Hold a value and return its reference."""
    reference = reference or new_id()
    unit(spending_holds.hold, wallet, SpendingRequest(nanos, ADDRESS, Family.EVM), reference=reference)
    return reference


def _account(nanos: int) -> str:
    owner = new_id()
    unit(credit_accounts.open_account, owner)
    unit(credit_accounts.grant, owner, nanos, reference=owner)
    return owner


def _spent(wallet: str) -> int:
    return read(spending_controls.status_of, wallet).today.spent_nanos


def test_concurrent_holds_reach_a_limit_and_never_exceed_it(app: Flask) -> None:
    wallet = _wallet(daily_limit_nanos=100)

    def spend_in_a_row() -> int:
        made = 0
        for nanos in random.choices((1, 3, 7, 20), k=8):
            with contextlib.suppress(DailyLimitExceeded):
                _hold(wallet, nanos)
                made += nanos
        return made

    made = [answer for answer in race(app, [spend_in_a_row] * CONCURRENT) if isinstance(answer, int)]
    assert len(made) == CONCURRENT
    assert sum(made) == _spent(wallet) <= 100
    # Nothing was lost either: the rest can be spent to the last nano.
    _hold(wallet, 100 - _spent(wallet))
    with pytest.raises(DailyLimitExceeded):
        _hold(wallet, 1)


def test_concurrent_holds_with_one_reference_count_once(app: Flask) -> None:
    wallet, reference = _wallet(daily_limit_nanos=10), new_id()
    answers = race(app, [lambda: _hold(wallet, 7, reference=reference)] * CONCURRENT)
    assert answers == [reference] * CONCURRENT
    assert _spent(wallet) == 7


def _wait_for_lock() -> None:
    """Wait until another unit waits for this one; SQLite begins it afterwards only."""
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")

    def waits() -> bool:
        with db.engine.connect() as connection:
            return bool(connection.execute(waiting).all())

    if db.engine.dialect.name == "postgresql":
        wait_until(waits, what="another unit waits")


def test_a_refund_during_a_settlement_returns_what_it_charges(app: Flask) -> None:
    owner, hold_id = _account(100), new_id()
    unit(credit_holds.hold, owner, 60, hold_id=hold_id, lease=LEASE)

    def refund() -> CreditHoldState:
        with app.app_context():
            return unit(credit_holds.refund, hold_id).state

    with ThreadPoolExecutor(1) as threads:
        with unit_of_work() as session:
            credit_holds.settle(session, hold_id, 50)
            refunded = threads.submit(refund)
            _wait_for_lock()
        assert refunded.result(30) is CreditHoldState.RELEASED
    assert read(credit_accounts.balance, owner).credits_nanos == 100


def test_an_approved_payment_of_another_wallet_locks_both_in_the_order_of_all_units(app: Flask) -> None:
    paying, asking = sorted((_wallet(), _wallet()))
    approved = ApprovedPayment(_hold(asking, 5), 5, ADDRESS, None)
    request = SpendingRequest(5, ADDRESS, Family.EVM, approved=approved)

    def pay() -> None:
        with app.app_context():
            unit(spending_holds.hold, paying, request, reference=new_id())

    with ThreadPoolExecutor(1) as threads:
        with unit_of_work() as session:
            spending_accounts.lock_account(session, paying)
            paid = threads.submit(pay)
            _wait_for_lock()
            spending_accounts.lock_account(session, asking)
        paid.result(30)
    assert (_spent(asking), _spent(paying)) == (0, 5)


def test_concurrent_releases_of_one_hold_release_it_once(app: Flask) -> None:
    wallet = _wallet(daily_limit_nanos=10)
    for _ in range(3):
        reference = _hold(wallet, 5)
        _hold(wallet, 5, reference="kept" + reference[:8])
        verbs: list[Callable[[Session, str], bool]] = [spending_holds.spend, spending_holds.release]
        answers = race(app, [partial(unit, verb, reference) for verb in verbs * (CONCURRENT // 2)])
        assert Counter(answers) == {True: 1, False: CONCURRENT - 1}
        spent = _spent(wallet)
        assert spent in {5, 10}
        if spent == 10:
            unit(spending_holds.restore_hold, reference)
            unit(spending_holds.release, reference)
        unit(spending_holds.release, "kept" + reference[:8])
        assert _spent(wallet) == 0


def test_concurrent_holds_releases_spends_and_restores_keep_the_counters_correct(app: Flask) -> None:
    wallet = _wallet(daily_limit_nanos=60)
    references = [new_id() for _ in range(6)]

    def live() -> None:
        for _ in range(10):
            reference = random.choice(references)
            verb = random.choice((spending_holds.spend, spending_holds.release, spending_holds.restore_hold))
            try:
                _hold(wallet, 10, reference=reference)
            except DailyLimitExceeded:
                continue
            unit(verb, reference)

    race(app, [live] * 8)
    assert violations() == []
    total = func.coalesce(func.sum(SpendingHold.amount_nanos), 0)
    counting = select(total).where(SpendingHold.state != "released")
    assert int(read(lambda session: session.scalar(counting)) or 0) == _spent(wallet) <= 60


def test_after_a_freeze_returned_nothing_new_is_held(app: Flask) -> None:
    agent = new_id()
    wallets = [_wallet(agent_id=agent) for _ in range(3)]
    spent_when_frozen: list[int] = []

    def freeze() -> None:
        unit(spending_accounts.set_frozen, agent, frozen=True)
        spent_when_frozen.append(sum(_spent(wallet) for wallet in wallets))

    def move() -> int:
        moved = 0
        while True:
            try:
                _hold(random.choice(wallets), 1)
                moved += 1
            except WalletFrozen:
                return moved

    answers = race(app, [freeze, freeze, *[move] * 6])
    moved = sum(answer for answer in answers if isinstance(answer, int))
    assert spent_when_frozen == [moved, moved]


def test_a_wallet_deleted_during_movements_leaves_no_orphaned_holds(app: Flask) -> None:
    lowered = ControlsChange(daily_limit_nanos=5)
    for _ in range(3):
        wallet = _wallet(daily_limit_nanos=1000)
        held = _hold(wallet, 1)

        def move(wallet: str = wallet) -> list[str]:
            return [_hold(wallet, 1) for _ in range(5)]

        actions: list[Callable[[], object]] = [
            *[move] * 6,
            partial(unit, spending_holds.release, held),
            partial(unit, spending_controls.put_controls, wallet, lowered),
            partial(unit, spending_controls.close_account, wallet),
        ]
        for answer in race(app, actions):
            assert not isinstance(answer, ServiceError) or isinstance(answer, NotFound | DailyLimitExceeded)
        assert violations() == []


def test_concurrent_calls_never_hold_more_credits_than_available(app: Flask) -> None:
    owner = _account(100)

    def call() -> int:
        hold_id = new_id()
        unit(credit_holds.hold, owner, 30, hold_id=hold_id, lease=LEASE)
        return 30

    answers = race(app, [call] * CONCURRENT)
    assert Counter(map(type, answers)) == {int: 3, InsufficientCredits: CONCURRENT - 3}
    balance = read(credit_accounts.balance, owner)
    assert (balance.available_nanos, balance.held_nanos) == (10, 90)


def test_concurrent_calls_share_the_last_credits_to_the_nano(app: Flask) -> None:
    owner = _account(100)

    def call() -> int:
        return unit(credit_holds.hold, owner, 30, hold_id=new_id(), lease=LEASE, minimum_nanos=1)

    answers = race(app, [call] * CONCURRENT)
    assert sorted(answer for answer in answers if isinstance(answer, int)) == [10, 30, 30, 30]


def test_concurrent_endings_of_one_call_end_it_once(app: Flask) -> None:
    for _ in range(4):
        owner, hold_id = _account(100), new_id()
        unit(credit_holds.hold, owner, 50, hold_id=hold_id, lease=LEASE)
        ends: list[Callable[[], object]] = [
            partial(unit, credit_holds.settle, hold_id, 20),
            partial(unit, credit_holds.settle, hold_id, 80),
            partial(unit, credit_holds.release, hold_id),
            partial(unit, credit_holds.lapse, hold_id, 5),
        ]
        race(app, ends * 3)
        balance = read(credit_accounts.balance, owner)
        assert balance.held_nanos == 0
        assert balance.spent_nanos in {0, 20, 80}
        assert balance.available_nanos == 100 - balance.spent_nanos


def test_concurrent_repetitions_of_a_grant_and_a_charge_apply_once(app: Flask) -> None:
    owner, charge_id = _account(100), new_id()
    granted = race(app, [lambda: unit(credit_accounts.grant, owner, 50, reference="topup")] * CONCURRENT)
    assert Counter(granted) == {True: 1, False: CONCURRENT - 1}
    call, price = UsageCall(new_id(), "brave", "m"), MeteredUsage(40)
    race(app, [lambda: unit(usage.charge, owner, call, charge_id=charge_id, metered=price)] * CONCURRENT)
    race(app, [lambda: unit(credit_holds.hold, owner, 60, hold_id=owner, lease=LEASE)] * CONCURRENT)
    balance = read(credit_accounts.balance, owner)
    assert (balance.granted_nanos, balance.spent_nanos, balance.held_nanos) == (150, 40, 60)


def test_concurrent_first_calls_of_a_provider_are_all_counted(app: Flask) -> None:
    owner, key = _account(1000), new_id()

    def call() -> None:
        for _ in range(3):
            hold_id = new_id()
            unit(
                usage.begin,
                owner,
                UsageCall(key, "openai", "m"),
                hold_id=hold_id,
                nanos=10,
                estimate=MeteredUsage(1),
                lease=LEASE,
            )
            unit(usage.settle, hold_id, MeteredUsage(7, 2, 1))

    actions: list[Callable[[], object]] = [call] * 4 + [usage.charge_lapsed] * 2
    answers = race(app, actions)
    assert not any(isinstance(answer, ServiceError) for answer in answers)
    assert read(usage.by_provider, owner) == {"openai": usage.ProviderTotals(12, 84, 24, 12)}
    assert read(credit_accounts.balance, owner).credits_nanos == 1000 - 84
