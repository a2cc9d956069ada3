"""Holds: credits set aside before a call, settled to its cost or released after it. Alone writes its table.

held → settled | released | lapsed; lapsed (charged an estimate when its lease ran out) → settled | released,
posting the difference; settled → released by a refund. Every verb is conditional on the state, so that a
repetition changes nothing. The hold is touched before its account's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Row, Update, bindparam, case, delete, select, update

from app.core import clock, money
from app.core.tables import table_of
from app.credits import accounts, postings
from app.credits.accounts import Balance
from app.credits.models import CreditHold
from app.credits.postings import Bucket, Kind, Posting
from app.errors import InsufficientCredits
from app.extensions import db


class HoldState(StrEnum):
    """The states of a hold."""

    HELD = "held"
    LAPSED = "lapsed"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Hold:
    """Credits set aside: `amount_nanos` of them until `lease_until`."""

    id: str
    account_id: str
    amount_nanos: int
    lease_until: datetime
    memo: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a hold ended: what it was charged, and what its cost was beyond what the account could pay.

    `before` is the state in which this call found it: a call that changed nothing found `state` itself. `balance`
    is what the account has with it.
    """

    hold_id: str
    account_id: str
    before: HoldState
    state: HoldState
    charged_nanos: int
    unpaid_nanos: int
    memo: Mapping[str, Any]
    balance: Balance

    @property
    def repeated(self) -> bool:
        """Tell whether the hold had ended before and this call changed nothing."""
        return self.before in {HoldState.SETTLED, HoldState.RELEASED}


# What precedes a hold's id in the references of its postings.
_REASONS = ("hold", "charge", "settle", "release", "excess", "late", "refund")
_HoldRow: TypeAlias = Row[*tuple[Any, ...]]
_TABLE = table_of(CreditHold)
_AMOUNT = _TABLE.c.amount_nanos
_COST = bindparam("cost_nanos", type_=BigInteger)
_COLUMNS = (
    _TABLE.c.id,
    _TABLE.c.account_id,
    _AMOUNT,
    _TABLE.c.state,
    _TABLE.c.settled_nanos,
    _TABLE.c.unpaid_nanos,
    _TABLE.c.memo,
    _TABLE.c.lease_until,
)
_READ = select(*_COLUMNS).where(_TABLE.c.id == bindparam("hold_id"))
_TURN = (
    update(_TABLE)
    .where(_TABLE.c.id == bindparam("hold_id"), _TABLE.c.state == bindparam("before"))
    .values({_TABLE.c.state: bindparam("after")})
    .returning(*_COLUMNS)
)
# An open hold is charged what the call cost, as far as it reaches.
_TURN_HELD = _TURN.values({_TABLE.c.settled_nanos: case((_AMOUNT < _COST, _AMOUNT), else_=_COST)})
_LAPSE = _TURN_HELD.where(_TABLE.c.lease_until <= bindparam("now"))


def hold(
    owner_id: str,
    nanos: int,
    *,
    hold_id: str,
    lease: timedelta,
    at_least_nanos: int | None = None,
    memo: Mapping[str, Any] | None = None,
) -> Hold:
    """Set credits aside for a call. Three statements, whatever the history.

    With `at_least_nanos`, all that is available is held where that is less than `nanos`. A hold that was made
    before under this id is returned as it stands.

    Raises: InsufficientCredits with `details.credits_usd` (what is available) and `details.required_usd`;
    LookupError for an account that was never opened.
    """
    now = clock.now()
    held = Hold(hold_id, owner_id, nanos, now + lease, dict(memo or {}))
    if not _insert(held, HoldState.HELD, now):
        return _hold(_read(hold_id))
    held, _ = _take(held, nanos if at_least_nanos is None else at_least_nanos, into=Bucket.HELD)
    posting = Posting(f"hold:{hold_id}", Kind.HOLD, Bucket.AVAILABLE, Bucket.HELD, held.amount_nanos)
    postings.write(owner_id, [posting], at=now)
    return held


def charge(owner_id: str, nanos: int, *, charge_id: str, memo: Mapping[str, Any] | None = None) -> Outcome:
    """Charge a price known beforehand at once; a repeated charge changes nothing.

    Raises: InsufficientCredits, LookupError.
    """
    now = clock.now()
    charged = Hold(charge_id, owner_id, nanos, now, dict(memo or {}))
    if not _insert(charged, HoldState.SETTLED, now):
        return _ended(_read(charge_id))
    _, balance = _take(charged, nanos, into=Bucket.REVENUE)
    posting = Posting(f"charge:{charge_id}", Kind.SETTLE, Bucket.AVAILABLE, Bucket.REVENUE, nanos)
    postings.write(owner_id, [posting], at=now)
    return Outcome(charge_id, owner_id, HoldState.HELD, HoldState.SETTLED, nanos, 0, charged.memo, balance)


def settle(hold_id: str, cost_nanos: int) -> Outcome:
    """Charge what a call cost and release the rest of its hold.

    What it cost beyond its hold is charged as far as the account reaches; the remainder is returned and kept
    as unpaid, never as a debt. After a lapse the difference to the estimate is posted. A hold that was
    settled or released before keeps its first outcome.

    Raises: LookupError for an unknown hold: a defect.
    """
    return _end(hold_id, cost_nanos, HoldState.SETTLED)


def lapse(hold_id: str, estimate_nanos: int) -> Outcome:
    """Charge an estimate for a hold whose lease ran out without news; the true cost may still replace it.

    A hold that was renewed or has ended meanwhile is left alone. Raises: LookupError.
    """
    row = _turn(_LAPSE, hold_id, HoldState.HELD, HoldState.LAPSED, cost_nanos=estimate_nanos, now=clock.now())
    return _ended(_read(hold_id)) if row is None else _settle_held(row, estimate_nanos, HoldState.LAPSED)


def release(hold_id: str) -> Outcome:
    """Give everything back that is held, or that a lapse has charged. A settled hold keeps its first outcome.

    Raises: LookupError.
    """
    return _end(hold_id, 0, HoldState.RELEASED)


def refund(charge_id: str) -> Outcome:
    """Give a charge back because its call failed; once. Raises: LookupError."""
    row = _turn(_TURN, charge_id, HoldState.SETTLED, HoldState.RELEASED)
    if row is None:
        return _ended(_read(charge_id))
    return _replace_charge(row, HoldState.SETTLED, 0, HoldState.RELEASED)


def renew(hold_id: str, *, lease: timedelta) -> bool:
    """Extend the lease of an open hold from now; tell whether it still was open."""
    renewed = db.session.execute(
        update(CreditHold)
        .where(CreditHold.id == hold_id, CreditHold.state == HoldState.HELD.value)
        .values(lease_until=clock.now() + lease)
        .returning(CreditHold.id)
        .execution_options(synchronize_session=False)
    )
    return renewed.first() is not None


def expired_holds(now: datetime, limit: int) -> list[Hold]:
    """Return open holds whose lease ran out, the oldest first. Works in a reading unit."""
    rows = db.session.execute(
        select(*_COLUMNS)
        .where(CreditHold.state == HoldState.HELD.value, CreditHold.lease_until <= now)
        .order_by(CreditHold.lease_until)
        .limit(limit)
    )
    return [_hold(row) for row in rows]


def references_of(hold_id: str) -> list[str]:
    """Return every reference that a posting of this hold may have."""
    return [f"{reason}:{hold_id}" for reason in _REASONS]


def _end(hold_id: str, cost_nanos: int, state: HoldState) -> Outcome:
    row = _turn(_TURN_HELD, hold_id, HoldState.HELD, state, cost_nanos=cost_nanos)
    if row is not None:
        return _settle_held(row, cost_nanos, state)
    row = _turn(_TURN, hold_id, HoldState.LAPSED, state)
    if row is not None:
        return _replace_charge(row, HoldState.LAPSED, cost_nanos, state)
    return _ended(_read(hold_id))


def _settle_held(row: _HoldRow, cost_nanos: int, state: HoldState) -> Outcome:
    rest_nanos = max(0, row.amount_nanos - cost_nanos)
    excess_nanos = max(0, cost_nanos - row.amount_nanos)
    # Only a cost beyond the hold needs to know what is available, and so the row's lock beforehand.
    extra_nanos = min(excess_nanos, accounts.lock_available(row.account_id)) if excess_nanos else 0
    from_held_nanos = row.amount_nanos - rest_nanos
    charged_nanos = from_held_nanos + extra_nanos
    balance = accounts.move(
        row.account_id, available=rest_nanos - extra_nanos, held=-row.amount_nanos, spent=charged_nanos
    )
    if excess_nanos:
        _record(row.id, charged_nanos, excess_nanos - extra_nanos)
    postings.write(
        row.account_id,
        [
            Posting(f"settle:{row.id}", Kind.SETTLE, Bucket.HELD, Bucket.REVENUE, from_held_nanos),
            Posting(f"release:{row.id}", Kind.RELEASE, Bucket.HELD, Bucket.AVAILABLE, rest_nanos),
            Posting(f"excess:{row.id}", Kind.SETTLE, Bucket.AVAILABLE, Bucket.REVENUE, extra_nanos),
        ],
        at=clock.now(),
    )
    unpaid_nanos = excess_nanos - extra_nanos
    return Outcome(
        row.id, row.account_id, HoldState.HELD, state, charged_nanos, unpaid_nanos, row.memo, balance
    )


def _replace_charge(row: _HoldRow, before: HoldState, cost_nanos: int, state: HoldState) -> Outcome:
    more_nanos = max(0, cost_nanos - row.settled_nanos)
    less_nanos = max(0, row.settled_nanos - cost_nanos)
    extra_nanos = min(more_nanos, accounts.lock_available(row.account_id)) if more_nanos else 0
    charged_nanos = row.settled_nanos + extra_nanos - less_nanos
    balance = accounts.move(
        row.account_id, available=less_nanos - extra_nanos, spent=extra_nanos - less_nanos
    )
    unpaid_nanos = more_nanos - extra_nanos
    _record(row.id, charged_nanos, unpaid_nanos)
    # Each of the two happens at most once in the life of a hold, and has one of the two directions.
    reason = "late" if before is HoldState.LAPSED else "refund"
    postings.write(
        row.account_id,
        [
            Posting(f"{reason}:{row.id}", Kind.SETTLE, Bucket.AVAILABLE, Bucket.REVENUE, extra_nanos),
            Posting(f"{reason}:{row.id}", Kind.RELEASE, Bucket.REVENUE, Bucket.AVAILABLE, less_nanos),
        ],
        at=clock.now(),
    )
    return Outcome(row.id, row.account_id, before, state, charged_nanos, unpaid_nanos, row.memo, balance)


def _insert(new: Hold, state: HoldState, at: datetime) -> bool:
    values = {
        "id": new.id,
        "account_id": new.account_id,
        "amount_nanos": new.amount_nanos,
        "state": state.value,
        "settled_nanos": new.amount_nanos if state is HoldState.SETTLED else 0,
        "unpaid_nanos": 0,
        "memo": new.memo,
        "lease_until": new.lease_until,
        "created_at": at,
    }
    return postings.insert_once(_TABLE.c.id, values)


def _take(new: Hold, at_least_nanos: int, *, into: Bucket) -> tuple[Hold, Balance]:
    balance = accounts.take(new.account_id, new.amount_nanos, into=into)
    if balance is not None:
        return new, balance
    available_nanos = accounts.lock_available(new.account_id)
    nanos = min(new.amount_nanos, available_nanos)
    if nanos == 0 or nanos < min(new.amount_nanos, at_least_nanos):
        # A caller that catches the refusal inside its unit must not commit a hold of nothing.
        db.session.execute(delete(CreditHold).where(CreditHold.id == new.id))
        raise InsufficientCredits(
            details={
                "credits_usd": money.usd_from_nanos(available_nanos),
                "required_usd": money.usd_from_nanos(min(new.amount_nanos, at_least_nanos)),
            }
        )
    balance = accounts.take(new.account_id, nanos, into=into)
    if balance is None:
        raise RuntimeError("a locked account lost credits")
    if nanos != new.amount_nanos:
        db.session.execute(
            update(CreditHold)
            .where(CreditHold.id == new.id)
            .values(amount_nanos=nanos)
            .execution_options(synchronize_session=False)
        )
    return replace(new, amount_nanos=nanos), balance


def _turn(
    statement: Update, hold_id: str, before: HoldState, after: HoldState, **values: int | datetime
) -> _HoldRow | None:
    """Turn a hold from one state into another by one of the statements above; None where it is in another state."""
    states = {"hold_id": hold_id, "before": before.value, "after": after.value}
    row: _HoldRow | None = db.session.execute(statement, {**states, **values}).one_or_none()
    return row


def _record(hold_id: str, settled_nanos: int, unpaid_nanos: int) -> None:
    db.session.execute(
        update(CreditHold)
        .where(CreditHold.id == hold_id)
        .values(settled_nanos=settled_nanos, unpaid_nanos=unpaid_nanos)
        .execution_options(synchronize_session=False)
    )


def _read(hold_id: str) -> _HoldRow:
    row: _HoldRow | None = db.session.execute(_READ, {"hold_id": hold_id}).one_or_none()
    if row is None:
        raise LookupError(f"no credits were ever held under {hold_id}")
    return row


def _hold(row: _HoldRow) -> Hold:
    return Hold(row.id, row.account_id, row.amount_nanos, row.lease_until, row.memo)


def _ended(row: _HoldRow) -> Outcome:
    state = HoldState(row.state)
    balance = accounts.balance(row.account_id)
    return Outcome(
        row.id, row.account_id, state, state, row.settled_nanos, row.unpaid_nanos, row.memo, balance
    )
