"""Proof of the ledger: what the rows say is what the postings add up to. Set-based queries; reads only."""

from __future__ import annotations

from sqlalchemy import ColumnElement, case, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from app.core.money import NANOS_PER_USD
from app.credits.holds import HoldState
from app.credits.models import CreditAccount, CreditHold, CreditPosting
from app.credits.postings import Bucket
from app.extensions import db


def check() -> list[str]:
    """Return one sentence per violated invariant, none when all is well. Works in a reading unit."""
    return [*_wrong_sums(), *_wrong_holds(), *_wrong_total()]


def _wrong_sums() -> list[str]:
    """Compare every account's buckets with the sums of its postings."""
    sums = (
        select(
            CreditPosting.account_id,
            _into(Bucket.AVAILABLE).label("available"),
            _into(Bucket.HELD).label("held"),
            (-_into(Bucket.ISSUANCE)).label("granted"),
            _into(Bucket.REVENUE).label("spent"),
        )
        .group_by(CreditPosting.account_id)
        .subquery()
    )
    wrong = db.session.scalars(
        select(CreditAccount.id)
        .outerjoin(sums, sums.c.account_id == CreditAccount.id)
        .where(
            or_(
                CreditAccount.available_nanos
                != func.coalesce(sums.c.available, 0) - CreditAccount.carried_nanos,
                CreditAccount.held_nanos != func.coalesce(sums.c.held, 0),
                CreditAccount.granted_nanos != func.coalesce(sums.c.granted, 0),
                CreditAccount.spent_nanos != func.coalesce(sums.c.spent, 0) + CreditAccount.carried_nanos,
                CreditAccount.available_nanos < 0,
                CreditAccount.held_nanos < 0,
            )
        )
    )
    return [f"account {account_id} is not the sum of its postings" for account_id in wrong]


def _wrong_holds() -> list[str]:
    """Compare what every account holds and has spent with its holds."""
    is_open = CreditHold.state == HoldState.HELD.value
    sums = (
        select(
            CreditHold.account_id,
            func.sum(case((is_open, CreditHold.amount_nanos), else_=0)).label("held"),
            func.sum(CreditHold.settled_nanos).label("settled"),
        )
        .group_by(CreditHold.account_id)
        .subquery()
    )
    wrong = db.session.scalars(
        select(CreditAccount.id)
        .outerjoin(sums, sums.c.account_id == CreditAccount.id)
        .where(
            or_(
                CreditAccount.held_nanos != func.coalesce(sums.c.held, 0),
                CreditAccount.spent_nanos != func.coalesce(sums.c.settled, 0) + CreditAccount.carried_nanos,
            )
        )
    )
    found = [f"account {account_id} is not the sum of its holds" for account_id in wrong]
    ended_wrong = db.session.scalars(
        select(CreditHold.id).where(
            CreditHold.state.in_([HoldState.HELD.value, HoldState.RELEASED.value]),
            CreditHold.settled_nanos != 0,
        )
    )
    return [*found, *(f"hold {hold_id} is charged though it was never settled" for hold_id in ended_wrong)]


def _wrong_total() -> list[str]:
    """Compare what was issued and not earned with what all accounts have."""
    amount = _outside_of(CreditPosting.debit) - _outside_of(CreditPosting.credit)
    outside = _total(CreditPosting.amount_nanos * amount) - _total(CreditAccount.carried_nanos)
    inside = _total(CreditAccount.available_nanos + CreditAccount.held_nanos)
    if outside == inside:
        return []
    return [f"{outside} nano-dollars are issued and not earned, but accounts have {inside}"]


def _outside_of(bucket: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[int]:
    return case((bucket.in_([Bucket.ISSUANCE.value, Bucket.REVENUE.value]), 1), else_=0)


def _total(nanos: ColumnElement[int] | InstrumentedAttribute[int]) -> int:
    """Add up over all accounts, dollars and nano-dollars apart: SQLite's sums are no longer than a BIGINT."""
    dollars, rest = db.session.execute(
        select(func.sum(nanos // NANOS_PER_USD), func.sum(nanos % NANOS_PER_USD))
    ).one()
    return int(dollars or 0) * NANOS_PER_USD + int(rest or 0)


def _into(bucket: Bucket) -> ColumnElement[int]:
    amount = CreditPosting.amount_nanos
    return func.sum(
        case(
            (CreditPosting.credit == bucket.value, amount),
            (CreditPosting.debit == bucket.value, -amount),
            else_=0,
        )
    )
