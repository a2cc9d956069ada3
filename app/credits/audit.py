"""Audit of the ledger: accounts and holds equal the sums of their entries. Set-based, read-only queries."""

from sqlalchemy import ColumnElement, case, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.credits import accounts
from app.credits.accounts import Bucket
from app.credits.holds import CreditHoldState
from app.credits.models import CreditAccount, CreditHold, CreditLedgerEntry


def _outside_of(bucket: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[int]:
    return case((bucket.in_([Bucket.ISSUANCE.value, Bucket.REVENUE.value]), 1), else_=0)


def _net_into(bucket: Bucket) -> ColumnElement[int]:
    amount = CreditLedgerEntry.amount_nanos
    into, out_of = CreditLedgerEntry.credit == bucket.value, CreditLedgerEntry.debit == bucket.value
    return func.coalesce(func.sum(case((into, amount), (out_of, -amount), else_=0)), 0)


# Accounts with a bucket that differs from the sum of its ledger entries.
_WRONG_SUMS = (
    select(CreditAccount.id)
    .outerjoin(CreditLedgerEntry, CreditLedgerEntry.account_id == CreditAccount.id)
    .group_by(CreditAccount.id)
    .having(
        or_(
            CreditAccount.available_nanos != _net_into(Bucket.AVAILABLE) - CreditAccount.carried_nanos,
            CreditAccount.held_nanos != _net_into(Bucket.HELD),
            CreditAccount.granted_nanos != -_net_into(Bucket.ISSUANCE),
            CreditAccount.spent_nanos != _net_into(Bucket.REVENUE) + CreditAccount.carried_nanos,
            CreditAccount.available_nanos < 0,
            CreditAccount.held_nanos < 0,
        )
    )
)

_open_nanos = case((CreditHold.state == CreditHoldState.HELD.value, CreditHold.amount_nanos), else_=0)
# Accounts with held and spent sums that differ from their holds.
_WRONG_HOLDS = (
    select(CreditAccount.id)
    .outerjoin(CreditHold, CreditHold.account_id == CreditAccount.id)
    .group_by(CreditAccount.id)
    .having(
        or_(
            CreditAccount.held_nanos != func.coalesce(func.sum(_open_nanos), 0),
            CreditAccount.spent_nanos
            != func.coalesce(func.sum(CreditHold.settled_nanos), 0) + CreditAccount.carried_nanos,
        )
    )
)
_WRONGLY_ENDED_HOLDS = select(CreditHold.id).where(
    CreditHold.state.in_([CreditHoldState.HELD.value, CreditHoldState.RELEASED.value]), CreditHold.settled_nanos != 0
)
_ISSUED_TIMES = _outside_of(CreditLedgerEntry.debit) - _outside_of(CreditLedgerEntry.credit)
_ISSUED = CreditLedgerEntry.amount_nanos * _ISSUED_TIMES
_CARRIED = CreditAccount.carried_nanos + 0
_INSIDE = CreditAccount.available_nanos + CreditAccount.held_nanos


def check(session: Session) -> list[str]:
    """Return one sentence per violated invariant."""
    (issued,) = accounts.sums_of(session, _ISSUED)
    carried, inside = accounts.sums_of(session, _CARRIED, _INSIDE)
    # What was issued and not earned is what all accounts have.
    outside = issued - carried
    total = f"{outside} nano-dollars were issued and not earned, but accounts have {inside}"
    return [
        *(f"account {each} is not the sum of its ledger entries" for each in session.scalars(_WRONG_SUMS)),
        *(f"account {each} is not the sum of its holds" for each in session.scalars(_WRONG_HOLDS)),
        *(f"hold {each} has a charge but was never settled" for each in session.scalars(_WRONGLY_ENDED_HOLDS)),
        *([total] if outside != inside else []),
    ]
