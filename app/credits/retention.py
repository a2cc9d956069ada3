"""Retention of holds: old ones are deleted and their sum is carried forward on the account.

A hold that ended long ago is deleted with all its ledger entries, in one unit; those of a month that is dropped are
replaced by one of each account, which is then as old as they were. Grants are never deleted: a reference must never be
reused. What does not add up is kept, so that evidence for the audit is not lost.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import String, case, cast, delete, func, literal, or_, select, text, union_all, update
from sqlalchemy.orm import Session

from app.credits import holds
from app.credits.accounts import Bucket
from app.credits.holds import CreditHoldState
from app.credits.models import CreditAccount, CreditHold, CreditLedgerEntry
from app.db.partitions import Month
from app.db.tables import add_amounts, in_list, table_of

# The condition of the partial index.
_ENDED = text("credit_holds.state <> 'held'")
_HOLDS, _ENTRIES = table_of(CreditHold), table_of(CreditLedgerEntry)
_MOVED = (_ENTRIES.c.account_id, _ENTRIES.c.debit, _ENTRIES.c.credit, _ENTRIES.c.amount_nanos)
# With a reference that is in no month.
_REPLACE = text("""
WITH ended AS (
  DELETE FROM credit_holds WHERE id >= CAST(:low AS uuid) AND id < CAST(:high AS uuid)
  RETURNING account_id, settled_nanos
), placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT gen_random_uuid(), account_id, sum(settled_nanos), 'settled', sum(settled_nanos), 0, '{}', :start, :start
  FROM ended GROUP BY account_id HAVING sum(settled_nanos) > 0 RETURNING *
)
INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
SELECT 'settle:' || id, 'settle', account_id, 'available', 'revenue', amount_nanos, created_at FROM placed
""")


class UnbalancedError(Exception):
    """The ledger entries of some accounts differ from the charges of their holds: a bug, or tampering."""

    def __init__(self, account_ids: Collection[str]) -> None:
        super().__init__("ledger entries and holds differ")
        self.account_ids = frozenset(account_ids)


def delete_ended(
    session: Session, before: datetime, *, limit: int, except_accounts: Collection[str] = ()
) -> tuple[list[str], Mapping[str, int]]:
    """Delete holds that ended and were made before an instant, with their ledger entries.

    Returns their ids, and what they had charged each account. The caller must `carry_forward` that at the end of the
    unit, which locks accounts: charges wait for the locks.

    Raises: UnbalancedError.
    """
    is_old = _ENDED, _HOLDS.c.created_at < before, _HOLDS.c.account_id.not_in(except_accounts)
    old = select(_HOLDS.c.id).where(*is_old).order_by(_HOLDS.c.created_at).limit(limit)
    deletion = delete(_HOLDS).where(_HOLDS.c.id.in_(old.scalar_subquery()))
    deleted = session.execute(deletion.returning(_HOLDS.c.id, _HOLDS.c.account_id, _HOLDS.c.settled_nanos)).all()
    if not deleted:
        return [], {}
    charged = Counter[str]()
    for row in deleted:
        charged[row.account_id] += row.settled_nanos
    # By account and bucket, the charges of holds less what the entries have moved: must be zero.
    rest = Counter[tuple[str, str]]()
    for account_id, nanos in charged.items():
        rest[account_id, Bucket.AVAILABLE] = nanos
        rest[account_id, Bucket.REVENUE] = -nanos
    references = [reference for row in deleted for reference in holds.references_of(row.id)]
    deletion = delete(_ENTRIES).where(in_list(session, _ENTRIES.c.reference, references))
    for account_id, debit, credit, amount_nanos in session.execute(deletion.returning(*_MOVED)):
        rest[account_id, debit] -= amount_nanos
        rest[account_id, credit] += amount_nanos
    if unbalanced := {account_id for (account_id, _), nanos in rest.items() if nanos}:
        raise UnbalancedError(unbalanced)
    return [row.id for row in deleted], charged


def carry_forward(session: Session, charged_nanos: Mapping[str, int]) -> None:
    """Add the charges of deleted holds to their accounts."""
    rows = [{"id": each, "carried_nanos": nanos} for each, nanos in sorted(charged_nanos.items())]
    add_amounts(session, table_of(CreditAccount), ["id"], rows)


def close(session: Session, month: Month) -> bool:
    """Replace the holds of a month that is dropped by one of each account; return False if one is open.

    Raises: UnbalancedError; IntegrityError if a hold has an entry twice, once with its former reference.
    """
    (low, high), reference = month.keys, _ENTRIES.c.reference
    in_month = _HOLDS.c.id >= low, _HOLDS.c.id < high
    is_open = _HOLDS.c.state == CreditHoldState.HELD.value
    if session.execute(select(_HOLDS.c.id).where(*in_month, is_open).limit(1)).first():
        return False
    for reason in holds.REASONS:
        # While hosts were upgraded, one of the former version may have ended what a newer one had begun.
        former = reference >= f"{reason}:{low}", reference < f"{reason}:{high}"
        renamed = func.substr(reference, len(reason) + 2) + f":{reason}"
        session.execute(update(_ENTRIES).where(*former).values(reference=renamed))
    # As in `delete_ended`: what the entries have moved, less the charges of holds.
    back = literal(Bucket.REVENUE), literal(Bucket.AVAILABLE), _HOLDS.c.settled_nanos
    charged = select(_HOLDS.c.account_id, *back).where(*in_month)
    rest = union_all(select(month.partition_of("credit_postings", *_MOVED)), charged).subquery().c
    into, out_of, nanos = rest.credit, rest.debit, rest.amount_nanos
    sums = (func.sum(case((into == each, nanos), (out_of == each, -nanos), else_=0)) for each in Bucket)
    wrong = select(cast(rest.account_id, String)).group_by(rest.account_id).having(or_(*(each != 0 for each in sums)))
    if unbalanced := session.scalars(wrong).all():
        raise UnbalancedError(unbalanced)
    session.execute(_REPLACE, {"low": low, "high": high, "start": month.start})
    return True
