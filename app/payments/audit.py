"""Audit of payments: top-ups agree with the ledger, and every payment has its claim."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.credits import accounts as credit_accounts
from app.payments import claimed_payments, topups
from app.payments.models import TopUp


def check(session: Session) -> list[str]:
    """Return one sentence per violated invariant, none when all is well."""
    topup_rows = session.scalars(select(TopUp)).all()
    recorded = {
        topups.grant_reference(row.transaction_id): (row.account_id, (row.granted_nanos or 0) + row.owed_nanos)
        for row in topup_rows
        if row.granted_nanos or row.owed_nanos
    }
    granted = credit_accounts.grants_by_reference(session, topups.REFERENCE_PREFIX)
    wrong = [
        f"{reference}: recorded are {recorded.get(reference)}, the ledger has {granted.get(reference)}"
        for reference in sorted(recorded.keys() | granted.keys())
        if recorded.get(reference) != granted.get(reference)
    ]
    excessive = [row for row in topup_rows if (row.granted_nanos or 0) > row.units * claimed_payments.NANOS_PER_UNIT]
    return [
        *wrong,
        *(f"top-up {row.transaction_id} granted more than was transferred" for row in excessive),
        *(
            f"top-up {each} is final and confirmed, and granted nothing"
            for each in topups.find_confirmed_without_grant(session)
        ),
        *(f"payment {each} has no claim" for each in claimed_payments.find_without_claim(session)),
    ]
