"""Holds: what a movement counts for, reserved before it is made, then spent or given back.

A value is fixed when it is held. held → spent | released; both → held again when a reorganisation undid the
outcome. Alone writes `spending_holds`; the account row is locked before a hold is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from sqlalchemy import and_, insert, literal, select, update

from app.core import clock
from app.core.chains import Family
from app.core.tables import among
from app.errors import (
    AddressNotAllowed,
    DailyLimitExceeded,
    DomainNotAllowed,
    MonthlyLimitExceeded,
    NotFound,
    PerTxLimitExceeded,
    PriceUnavailable,
    ServiceError,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.extensions import db
from app.spending import accounts, controls, policy
from app.spending.accounts import Account
from app.spending.models import SpendingAccount, SpendingControls, SpendingHold
from app.spending.policy import Controls, Movement, Rule

_ERRORS: Mapping[Rule, type[ServiceError]] = {
    Rule.FROZEN: WalletFrozen,
    Rule.ADDRESS: AddressNotAllowed,
    Rule.DOMAIN: DomainNotAllowed,
    Rule.PRICE: PriceUnavailable,
    Rule.PER_TX: PerTxLimitExceeded,
    Rule.DAILY: DailyLimitExceeded,
    Rule.WEEKLY: WeeklyLimitExceeded,
    Rule.MONTHLY: MonthlyLimitExceeded,
}


class HoldState(StrEnum):
    """The states of a hold; held and spent ones count, released ones do not."""

    HELD = "held"
    SPENT = "spent"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Hold:
    """What a movement was counted for, in nano-dollars, in the windows of the UTC day `made_on`."""

    reference: str
    wallet_id: str
    amount_nanos: int
    state: HoldState
    made_on: date


def hold(
    wallet_id: str,
    *,
    reference: str,
    value_nanos: int | None,
    recipient: str | None,
    family: Family | None,
    domain: str | None = None,
    now: datetime | None = None,
) -> Hold:
    """Count a movement against the wallet's limits, or refuse it. Four statements, whatever the history.

    `value_nanos` is None when no price is known, which does without limits (it counts 0). A reference that
    was held before is returned as it stands and is not counted again.

    Raises: WalletFrozen, AddressNotAllowed, DomainNotAllowed, PriceUnavailable, PerTxLimitExceeded,
    DailyLimitExceeded, WeeklyLimitExceeded, MonthlyLimitExceeded; NotFound when the wallet is gone;
    InvalidInput for a value beyond what can be counted.
    """
    now = now or clock.now()
    account = accounts.locked(SpendingAccount.wallet_id == wallet_id, now=now)
    one = select(literal(1)).subquery()
    row = db.session.execute(
        select(
            *controls.COLUMNS,
            SpendingHold.reference,
            SpendingHold.amount_nanos,
            SpendingHold.state,
            SpendingHold.made_on,
        )
        .select_from(one)
        .outerjoin(SpendingControls, SpendingControls.wallet_id == wallet_id)
        .outerjoin(
            SpendingHold, and_(SpendingHold.reference == reference, SpendingHold.wallet_id == wallet_id)
        )
    ).one()
    if row.reference is not None:
        return Hold(row.reference, wallet_id, row.amount_nanos, HoldState(row.state), row.made_on)
    _decide(account, controls.controls_in(row), Movement(value_nanos, recipient, family, domain))
    amount_nanos = value_nanos or 0
    accounts.count(account, amount_nanos)
    _insert(reference, account, amount_nanos, now)
    return Hold(reference, wallet_id, amount_nanos, HoldState.HELD, account.today)


def record(wallet_id: str, *, reference: str, value_nanos: int, now: datetime | None = None) -> None:
    """Count at least this much under a reference, past any limit: it was spent, or may have been, without being held.

    A released hold stays released, and a wallet that is gone counts nothing.
    """
    now = now or clock.now()
    try:
        account = accounts.locked(SpendingAccount.wallet_id == wallet_id, now=now)
    except NotFound:
        return
    found = db.session.execute(
        select(SpendingHold.amount_nanos, SpendingHold.state, SpendingHold.made_on).where(
            SpendingHold.reference == reference, SpendingHold.wallet_id == wallet_id
        )
    ).one_or_none()
    if found is None:
        accounts.count(account, value_nanos)
        _insert(reference, account, value_nanos, now)
    elif found.state != HoldState.RELEASED and found.amount_nanos < value_nanos:
        accounts.recount(account, value_nanos - found.amount_nanos, made_on=found.made_on)
        db.session.execute(
            update(SpendingHold)
            .where(SpendingHold.reference == reference)
            .values(amount_nanos=value_nanos)
            .execution_options(synchronize_session=False)
        )


def check(
    wallet_id: str,
    *,
    value_nanos: int | None,
    recipient: str | None,
    family: Family | None,
    domain: str | None = None,
    now: datetime | None = None,
) -> None:
    """Decide as `hold` does, without locking, counting or writing: for dry runs; works in a reading unit.

    Raises: what `hold` raises.
    """
    row = db.session.execute(
        select(*accounts.COLUMNS, *controls.COLUMNS)
        .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
        .where(SpendingAccount.wallet_id == wallet_id)
    ).one_or_none()
    if row is None:
        raise accounts.gone()
    account = accounts.account_of(row, now=now or clock.now())
    _decide(account, controls.controls_in(row), Movement(value_nanos, recipient, family, domain))
    accounts.assert_countable(policy.add(account.spent, value_nanos or 0))


def spend(reference: str, *, now: datetime | None = None) -> bool:
    """Mark a held amount as spent for good, so that it goes on counting; tell whether this call did it."""
    return _move(reference, {HoldState.HELD}, HoldState.SPENT, now)


def release(reference: str, *, now: datetime | None = None) -> bool:
    """Give a held amount back to the windows it was taken from; tell whether this call did it.

    Windows that have ended since are left alone, and an amount already spent stays spent.
    """
    return _move(reference, {HoldState.HELD}, HoldState.RELEASED, now)


def unspend(reference: str, *, now: datetime | None = None) -> bool:
    """Put a spent or released amount back to held, because a reorganisation undid its outcome.

    A released one counts again even past a limit: its movement is signed and under way, it cannot be refused.
    Tell whether this call did it.
    """
    return _move(reference, {HoldState.SPENT, HoldState.RELEASED}, HoldState.HELD, now)


def states_of(references: Sequence[str]) -> dict[str, HoldState]:
    """Return the states of the holds that there are, by reference; in a reading unit. For audits of other rooms."""
    rows = db.session.execute(
        select(SpendingHold.reference, SpendingHold.state).where(among(SpendingHold.reference, references))
    )
    return {row.reference: HoldState(row.state) for row in rows}


def _insert(reference: str, account: Account, amount_nanos: int, now: datetime) -> None:
    db.session.execute(
        insert(SpendingHold).values(
            reference=reference,
            wallet_id=account.wallet_id,
            amount_nanos=amount_nanos,
            state=HoldState.HELD.value,
            made_on=account.today,
            created_at=now,
        )
    )


def _move(reference: str, sources: set[HoldState], target: HoldState, now: datetime | None) -> bool:
    wallet_id = select(SpendingHold.wallet_id).where(SpendingHold.reference == reference).scalar_subquery()
    try:
        account = accounts.locked(SpendingAccount.wallet_id == wallet_id, now=now or clock.now())
    except NotFound:
        # Never held, or the wallet and its holds are gone: nothing to move.
        return False
    found = db.session.execute(
        select(SpendingHold.amount_nanos, SpendingHold.state, SpendingHold.made_on).where(
            SpendingHold.reference == reference
        )
    ).one_or_none()
    if found is None or found.state not in sources:
        return False
    db.session.execute(
        update(SpendingHold)
        .where(SpendingHold.reference == reference)
        .values(state=target.value)
        .execution_options(synchronize_session=False)
    )
    if target is HoldState.RELEASED:
        accounts.give_back(account, found.amount_nanos, made_on=found.made_on)
    elif found.state == HoldState.RELEASED:
        accounts.recount(account, found.amount_nanos, made_on=found.made_on)
    return True


def _decide(account: Account, rules: Controls | None, movement: Movement) -> None:
    refusal = policy.decide(rules, account.spent, movement, frozen=account.frozen, today=account.today)
    if refusal is not None:
        raise _ERRORS[refusal.rule](refusal.message, details=refusal.details)
