"""Forgetting old calls without changing what anybody has: their sum is carried forward on the account.

A hold that ended long ago goes with all its postings, in one unit. Grants stay for ever: a reference that was used
must never be used again. What does not add up is left alone, so that nothing that the audit finds is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, text

from app.core.tables import add_to, among, table_of
from app.credits import holds
from app.credits.models import CreditAccount, CreditHold, CreditPosting
from app.credits.postings import Bucket
from app.extensions import db

# In the words of the index, which covers ended holds only.
_ENDED = text("credit_holds.state <> 'held'")


class UnbalancedError(Exception):
    """The postings of some accounts' holds are not what those were charged: a defect, or tampering."""

    def __init__(self, account_ids: Collection[str]) -> None:
        super().__init__("postings and holds differ")
        self.account_ids = frozenset(account_ids)


@dataclass(slots=True)
class _Sums:
    charged_nanos: int = 0
    available_nanos: int = 0
    held_nanos: int = 0
    revenue_nanos: int = 0

    def post(self, bucket: str, nanos: int) -> None:
        """Add an amount that went into a bucket."""
        name = f"{bucket}_nanos"
        setattr(self, name, getattr(self, name) + nanos)

    @property
    def balanced(self) -> bool:
        """Tell whether the postings are what the holds were charged."""
        charged = self.charged_nanos
        return (self.available_nanos, self.held_nanos, self.revenue_nanos) == (-charged, 0, charged)


@dataclass(frozen=True, slots=True)
class Taken:
    """Holds that were taken away with their postings, and what they had charged each account: to be carried forward."""

    hold_ids: list[str]
    charged_nanos: Mapping[str, int]


def take_ended(before: datetime, *, limit: int, except_accounts: Collection[str] = ()) -> Taken:
    """Take holds away that ended and were made before an instant, with their postings.

    In the caller's unit, which must `carry` them, too: at its end, for that locks accounts, and charges wait for them.

    Raises: UnbalancedError.
    """
    old = (
        select(CreditHold.id)
        .where(_ENDED, CreditHold.created_at < before, CreditHold.account_id.not_in(except_accounts))
        .order_by(CreditHold.created_at)
        .limit(limit)
    )
    gone = db.session.execute(
        delete(CreditHold)
        .where(CreditHold.id.in_(old.scalar_subquery()))
        .returning(CreditHold.id, CreditHold.account_id, CreditHold.settled_nanos)
        .execution_options(synchronize_session=False)
    ).all()
    if not gone:
        return Taken([], {})
    sums: Mapping[str, _Sums] = defaultdict(_Sums)
    for row in gone:
        sums[row.account_id].charged_nanos += row.settled_nanos
    references = [reference for row in gone for reference in holds.references_of(row.id)]
    postings = db.session.execute(
        delete(CreditPosting)
        .where(among(CreditPosting.reference, references))
        .returning(
            CreditPosting.account_id, CreditPosting.debit, CreditPosting.credit, CreditPosting.amount_nanos
        )
        .execution_options(synchronize_session=False)
    )
    for account_id, debit, credit, amount_nanos in postings:
        if Bucket.ISSUANCE in {debit, credit}:
            raise UnbalancedError([account_id])
        sums[account_id].post(debit, -amount_nanos)
        sums[account_id].post(credit, amount_nanos)
    unbalanced = [account_id for account_id, each in sums.items() if not each.balanced]
    if unbalanced:
        raise UnbalancedError(unbalanced)
    return Taken(
        [row.id for row in gone], {account_id: each.charged_nanos for account_id, each in sums.items()}
    )


def carry(taken: Taken) -> None:
    """Add to the accounts what was taken away, in the current unit."""
    rows = [{"id": each, "carried_nanos": nanos} for each, nanos in sorted(taken.charged_nanos.items())]
    add_to(table_of(CreditAccount), ["id"], rows)
