"""The open payment of a payer for a request: submitted and not settled, or settled and neither served nor expired.

Clients that cannot present a signed payment again sign another one. It is not submitted while the first is open, and
the first serves its request.
"""

from __future__ import annotations

from sqlalchemy import bindparam, false, select
from sqlalchemy.orm import Session

from app.db.prepared import PreparedRead
from app.db.statements import insert_into, table_of
from app.payments import consumed
from app.payments.consumed import PaymentRow, PaymentStatus
from app.payments.models import LatestPayment, Payment

_TABLE, _PAYMENTS = table_of(LatestPayment), table_of(Payment)
_LATEST = PreparedRead(
    select(*_PAYMENTS.c)
    .join(_TABLE, _TABLE.c.payment_id == _PAYMENTS.c.id)
    .where(_TABLE.c.payer == bindparam("of_payer"), _TABLE.c.fingerprint == bindparam("of_fingerprint"))
)


class PaymentIsOpen(Exception):
    """Another payment of this payer for this request was recorded first: the unit must roll back."""


def is_open(payment: PaymentRow) -> bool:
    """Return whether a payment is being settled, or is settled and can still serve its request."""
    return payment.status == PaymentStatus.SETTLING or consumed.can_be_served(payment)


def find(session: Session, payer: str, fingerprint: str) -> PaymentRow | None:
    for mac in consumed.fingerprint_macs(fingerprint):
        latest: PaymentRow | None = _LATEST.one_or_none(session, {"of_payer": payer, "of_fingerprint": mac})
        if latest is not None and is_open(latest):
            return latest
    return None


def record(session: Session, payment: Payment) -> None:
    """Make a new signed payment the open one of its payer and request. Raises: PaymentIsOpen if another one is.

    Of concurrent units, one succeeds; the others are refused once it has committed.
    """
    names = {"of_payer": payment.payer, "of_fingerprint": payment.fingerprint}
    latest = _LATEST.one_or_none(session, names)
    if latest is not None and is_open(latest):
        raise PaymentIsOpen
    replaced = false() if latest is None else _TABLE.c.payment_id == latest.id
    written = session.scalar(
        insert_into(session, LatestPayment)
        .values(payer=payment.payer, fingerprint=payment.fingerprint, payment_id=payment.id)
        .on_conflict_do_update(index_elements=["payer", "fingerprint"], set_={"payment_id": payment.id}, where=replaced)
        .returning(LatestPayment.payment_id)
    )
    if written is None:
        raise PaymentIsOpen
