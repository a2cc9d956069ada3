"""Retention of holds: old ones are deleted and their sum is carried forward on the account.

A hold that ended long ago is deleted with all its ledger entries, in one unit. Grants are never deleted: a reference
must never be reused. What does not add up is kept, so that evidence for the audit is not lost.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from app.credits import holds
from app.credits.accounts import Bucket
from app.credits.models import CreditAccount, CreditHold, CreditLedgerEntry
from app.db.tables import add_amounts, in_list, table_of

# The condition of the partial index.
_ENDED = text("credit_holds.state <> 'held'")
_HOLDS, _ENTRIES = table_of(CreditHold), table_of(CreditLedgerEntry)


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
    amounts = deletion.returning(_ENTRIES.c.account_id, _ENTRIES.c.debit, _ENTRIES.c.credit, _ENTRIES.c.amount_nanos)
    for account_id, debit, credit, amount_nanos in session.execute(amounts):
        rest[account_id, debit] -= amount_nanos
        rest[account_id, credit] += amount_nanos
    if unbalanced := {account_id for (account_id, _), nanos in rest.items() if nanos}:
        raise UnbalancedError(unbalanced)
    return [row.id for row in deleted], charged


def carry_forward(session: Session, charged_nanos: Mapping[str, int]) -> None:
    """Add the charges of deleted holds to their accounts."""
    rows = [{"id": each, "carried_nanos": nanos} for each, nanos in sorted(charged_nanos.items())]
    add_amounts(session, table_of(CreditAccount), ["id"], rows)
