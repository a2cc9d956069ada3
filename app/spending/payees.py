"""Payees that an owner approved: no longer new, and perhaps with an amount per week that needs no further approval.

The wallet's account must be locked. The only writer of `approved_payees`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of
from app.core import clock
from app.db.statements import insert_into
from app.spending import policy
from app.spending.approval_rules import PayeePermission
from app.spending.models import ApprovedPayee, SpendingHold

_RELEASED = "released"
_SEAL = seal_of(ApprovedPayee)


def known(session: Session, wallet_id: str, payees: Collection[str], today: date) -> Mapping[str, PayeePermission]:
    """Return those payees that were approved, and what counts against their permissions this week."""
    if not payees:
        return {}
    rows = session.execute(
        select(*_SEAL.columns).where(ApprovedPayee.wallet_id == wallet_id, ApprovedPayee.payee.in_(payees))
    ).all()
    return {
        row.payee: PayeePermission(
            row.week_nanos, _counted(session, wallet_id, row.payee, today) if row.week_nanos else 0
        )
        for row in rows
        if _SEAL.accepts(session, row)
    }


def approve(session: Session, wallet_id: str, payees: Collection[str], *, week_nanos: int = 0) -> None:
    """Record payees as approved; an amount per week replaces the former one, 0 keeps it."""
    for payee in sorted(payees):
        values = {"wallet_id": wallet_id, "payee": payee, "week_nanos": week_nanos, "created_at": clock.now()}
        insert = insert_into(session, ApprovedPayee).values(ApprovedPayee.stamp(values))
        session.execute(insert.on_conflict_do_nothing())
        if week_nanos:
            is_meant = ApprovedPayee.wallet_id == wallet_id, ApprovedPayee.payee == payee
            change(session, ApprovedPayee, *is_meant, week_nanos=week_nanos)


def withdraw(session: Session, wallet_id: str, payee: str) -> bool:
    """Delete the approval of a payee, which is new again; return whether there was one."""
    deleted = session.execute(
        delete(ApprovedPayee)
        .where(ApprovedPayee.wallet_id == wallet_id, ApprovedPayee.payee == payee)
        .execution_options(synchronize_session=False)
    )
    return bool(deleted.rowcount)  # type: ignore[attr-defined]


def list_of(session: Session, wallet_ids: Collection[str]) -> Sequence[ApprovedPayee]:
    """Return the approved payees of wallets, newest first."""
    return session.scalars(
        select(ApprovedPayee)
        .where(ApprovedPayee.wallet_id.in_(wallet_ids))
        .order_by(ApprovedPayee.created_at.desc(), ApprovedPayee.payee)
        .limit(200)
    ).all()


def _counted(session: Session, wallet_id: str, payee: str, today: date) -> int:
    total = session.scalar(
        select(func.coalesce(func.sum(SpendingHold.amount_nanos), 0)).where(
            SpendingHold.wallet_id == wallet_id,
            SpendingHold.made_on >= policy.windows(today).week.start,
            SpendingHold.permitted_payee == payee,
            SpendingHold.state != _RELEASED,
        )
    )
    return int(total or 0)
