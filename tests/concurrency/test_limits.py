"""Races for limits and credits: any number of callers at once never pass a limit or double an amount.

Run on both databases, each with its own way of locking.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import func, select

from app.core.chains import Family
from app.core.identifiers import new_id
from app.credits import budget
from app.credits import service as credits_service
from app.errors import (
    DailyLimitExceeded,
    InsufficientCredits,
    NotFound,
    RateLimited,
    ServiceError,
    WalletFrozen,
)
from app.extensions import db
from app.spending import service as spending
from app.spending.models import SpendingHold
from app.usage import service as usage
from app.usage.service import Call, Metered
from tests.support.ledger import ledger_app, race, read, unit, violations
from tests.support.servers import Postgres

AT_ONCE = 16
ADDRESS = "0x52908400098527886E0F7030069857D2E4169EE7"
LEASE = timedelta(0)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Flask]:
    """Put the money rooms on an empty database of each kind."""
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
    unit(spending.open_account, wallet, agent_id or new_id())
    changes = spending.Changes(daily_limit_nanos=daily_limit_nanos)
    unit(spending.put_controls, wallet, changes, by_agent=True)
    return wallet


def _hold(wallet: str, nanos: int, *, reference: str | None = None) -> spending.Hold:
    return unit(
        spending.hold,
        wallet,
        reference=reference or new_id(),
        value_nanos=nanos,
        recipient=ADDRESS,
        family=Family.EVM,
    )


def _account(nanos: int) -> str:
    owner = new_id()
    unit(credits_service.open_account, owner)
    unit(credits_service.grant, owner, nanos, reference=owner)
    return owner


def _spent(wallet: str) -> int:
    return read(spending.standing, wallet).today.spent_nanos


def test_callers_at_once_reach_a_limit_and_never_pass_it(app: Flask) -> None:
    wallet = _wallet(daily_limit_nanos=100)

    def spend_in_a_row() -> int:
        made = 0
        for nanos in random.choices((1, 3, 7, 20), k=8):
            with contextlib.suppress(DailyLimitExceeded):
                made += _hold(wallet, nanos).amount_nanos
        return made

    made = [answer for answer in race(app, [spend_in_a_row] * AT_ONCE) if isinstance(answer, int)]
    assert len(made) == AT_ONCE
    assert sum(made) == _spent(wallet) <= 100
    # Nothing was lost on the way either: what is left can still be spent, to the last nano.
    _hold(wallet, 100 - _spent(wallet))
    with pytest.raises(DailyLimitExceeded):
        _hold(wallet, 1)


def test_one_movement_presented_many_times_at_once_counts_once(app: Flask) -> None:
    wallet, reference = _wallet(daily_limit_nanos=10), new_id()
    answers = race(app, [lambda: _hold(wallet, 7, reference=reference)] * AT_ONCE)
    assert {type(answer) for answer in answers} == {spending.Hold}
    assert _spent(wallet) == 7


def test_an_amount_given_back_by_many_at_once_comes_back_once(app: Flask) -> None:
    wallet = _wallet(daily_limit_nanos=10)
    for _ in range(3):
        reference = _hold(wallet, 5).reference
        _hold(wallet, 5, reference="kept" + reference[:8])
        verbs: list[Callable[[str], bool]] = [spending.spend, spending.release]
        answers = race(app, [partial(unit, verb, reference) for verb in verbs * (AT_ONCE // 2)])
        assert Counter(answers) == {True: 1, False: AT_ONCE - 1}
        spent = _spent(wallet)
        assert spent in {5, 10}
        if spent == 10:
            unit(spending.unspend, reference)
            unit(spending.release, reference)
        unit(spending.release, "kept" + reference[:8])
        assert _spent(wallet) == 0


def test_holding_releasing_spending_and_undoing_at_once_keeps_the_counters_true(app: Flask) -> None:
    wallet = _wallet(daily_limit_nanos=60)
    references = [new_id() for _ in range(6)]

    def live() -> None:
        for _ in range(10):
            reference = random.choice(references)
            verb = random.choice((spending.spend, spending.release, spending.unspend))
            try:
                _hold(wallet, 10, reference=reference)
            except DailyLimitExceeded:
                continue
            unit(verb, reference)

    race(app, [live] * 8)
    assert violations() == []
    total = func.coalesce(func.sum(SpendingHold.amount_nanos), 0)
    counting = select(total).where(SpendingHold.state != "released")
    assert int(read(db.session.scalar, counting) or 0) == _spent(wallet) <= 60


def test_once_a_freeze_is_answered_nothing_new_moves(app: Flask) -> None:
    agent = new_id()
    wallets = [_wallet(agent_id=agent) for _ in range(3)]
    spent_when_frozen: list[int] = []

    def freeze() -> None:
        unit(spending.freeze, agent)
        spent_when_frozen.append(sum(_spent(wallet) for wallet in wallets))

    def move() -> int:
        moved = 0
        while True:
            try:
                moved += _hold(random.choice(wallets), 1).amount_nanos
            except WalletFrozen:
                return moved

    answers = race(app, [freeze, freeze, *[move] * 6])
    moved = sum(answer for answer in answers if isinstance(answer, int))
    assert spent_when_frozen == [moved, moved]


def test_a_wallet_deleted_while_it_moves_leaves_no_orphans(app: Flask) -> None:
    lowered = spending.Changes(daily_limit_nanos=5)
    for _ in range(3):
        wallet = _wallet(daily_limit_nanos=1000)
        held = _hold(wallet, 1).reference

        def move(wallet: str = wallet) -> int:
            return sum(_hold(wallet, 1).amount_nanos for _ in range(5))

        actions: list[Callable[[], object]] = [
            *[move] * 6,
            partial(unit, spending.release, held),
            partial(unit, spending.put_controls, wallet, lowered, by_agent=True),
            partial(unit, spending.close_account, wallet),
        ]
        for answer in race(app, actions):
            assert not isinstance(answer, ServiceError) or isinstance(answer, NotFound | DailyLimitExceeded)
        assert violations() == []


def test_calls_at_once_never_hold_more_credits_than_there_are(app: Flask) -> None:
    owner = _account(100)

    def call() -> int:
        hold_id = new_id()
        unit(credits_service.hold, owner, 30, hold_id=hold_id, lease=LEASE)
        return 30

    answers = race(app, [call] * AT_ONCE)
    assert Counter(map(type, answers)) == {int: 3, InsufficientCredits: AT_ONCE - 3}
    balance = read(credits_service.balance, owner)
    assert (balance.available_nanos, balance.held_nanos) == (10, 90)


def test_calls_that_take_what_is_left_share_it_to_the_last_nano(app: Flask) -> None:
    owner = _account(100)

    def call() -> int:
        return unit(
            credits_service.hold, owner, 30, hold_id=new_id(), lease=LEASE, at_least_nanos=1
        ).amount_nanos

    answers = race(app, [call] * AT_ONCE)
    assert sorted(answer for answer in answers if isinstance(answer, int)) == [10, 30, 30, 30]


def test_a_call_ended_in_every_way_at_once_ends_in_one(app: Flask) -> None:
    for _ in range(4):
        owner, hold_id = _account(100), new_id()
        unit(credits_service.hold, owner, 50, hold_id=hold_id, lease=LEASE)
        ends: list[Callable[[], object]] = [
            partial(unit, credits_service.settle, hold_id, 20),
            partial(unit, credits_service.settle, hold_id, 80),
            partial(unit, credits_service.release, hold_id),
            partial(unit, credits_service.lapse, hold_id, 5),
        ]
        race(app, ends * 3)
        balance = read(credits_service.balance, owner)
        assert balance.held_nanos == 0
        assert balance.spent_nanos in {0, 20, 80}
        assert balance.available_nanos == 100 - balance.spent_nanos


def test_one_grant_and_one_charge_presented_many_times_at_once_happen_once(app: Flask) -> None:
    owner, charge_id = _account(100), new_id()
    granted = race(app, [lambda: unit(credits_service.grant, owner, 50, reference="topup")] * AT_ONCE)
    assert Counter(granted) == {True: 1, False: AT_ONCE - 1}
    race(app, [lambda: unit(credits_service.charge, owner, 40, charge_id=charge_id)] * AT_ONCE)
    race(app, [lambda: unit(credits_service.hold, owner, 60, hold_id=owner, lease=LEASE)] * AT_ONCE)
    balance = read(credits_service.balance, owner)
    assert (balance.granted_nanos, balance.spent_nanos, balance.held_nanos) == (150, 40, 60)


def test_first_calls_of_a_provider_at_once_are_all_in_the_sums(app: Flask) -> None:
    owner, key = _account(1000), new_id()

    def call() -> None:
        for _ in range(3):
            hold_id = new_id()
            unit(
                usage.begin,
                owner,
                Call(key, "openai", "m"),
                hold_id=hold_id,
                worst=Metered(10),
                estimate=Metered(1),
                lease=LEASE,
            )
            unit(usage.record, hold_id, Metered(7, 2, 1))

    actions: list[Callable[[], object]] = [call] * 4 + [usage.charge_lapsed] * 2
    answers = race(app, actions)
    assert not any(isinstance(answer, ServiceError) for answer in answers)
    assert read(usage.by_provider, owner) == {"openai": usage.ProviderTotals(12, 84, 24, 12)}
    assert read(credits_service.balance, owner).credits_nanos == 1000 - 84


def test_registrations_at_once_give_out_the_day_s_budget_and_no_more(app: Flask) -> None:
    answers = race(app, [lambda: unit(budget.take, 10, limit_nanos=45)] * AT_ONCE)
    assert Counter(type(answer) for answer in answers) == {type(None): 4, RateLimited: AT_ONCE - 4}
