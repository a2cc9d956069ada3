"""The life of a payment once it is claimed, and the claims that make it count once.

settling → paid → serving → served; serving → paid when the call was certainly not served, served → paid when what was
paid for is given back; settling → void when the payment certainly did not take place, which alone gives claims back;
from paid on → lost when a reorganisation undid it for good. The only writer of `status`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import delete, func, select, update

from app.core import clock, logs
from app.core.chains import ChainName
from app.core.unit_of_work import after_commit
from app.extensions import db
from app.payments.models import Payment, PaymentClaim
from app.ports import provider

_log = structlog.get_logger(__name__)
MOST_TRIES = 4
RETRY_WITHIN = timedelta(hours=24)


class Status(StrEnum):
    """The states of a payment."""

    SETTLING = "settling"
    PAID = "paid"
    SERVING = "serving"
    SERVED = "served"
    VOID = "void"
    LOST = "lost"


class Rail(StrEnum):
    """How a payment was presented."""

    HASH = "hash"
    SIGNED = "signed"


_TAKEN = (Status.PAID, Status.SERVING, Status.SERVED)


@dataclass(frozen=True, slots=True)
class Held:
    """A claimed payment, as a snapshot."""

    id: str
    rail: Rail
    chain: ChainName
    payer: str | None
    units: int
    fingerprint: str
    signed: bool
    status: Status
    tries: int
    tx_hash: str | None
    transaction_id: str | None
    recipient: str
    terms: dict[str, Any]
    paid_at: datetime | None

    @property
    def may_be_served(self) -> bool:
        """Tell whether it is paid and has a try left."""
        return self.status is Status.PAID and self.tries < MOST_TRIES and not self.is_too_old

    @property
    def is_too_old(self) -> bool:
        """Tell whether the time in which an unserved call can be tried again is over."""
        return self.paid_at is not None and clock.now() > self.paid_at + RETRY_WITHIN


def key_of_hash(chain: ChainName, tx_hash: str) -> str:
    """Return the claim key of a transaction."""
    return f"tx:{chain.value}:{tx_hash}"


def binding_of(fingerprint: str) -> str:
    """Return what is kept of a request's fingerprint: bodies hold passwords, which a plain digest would tell."""
    return _binding(provider.settings().secret_key_list()[0], fingerprint)


def is_bound(held: Held, fingerprint: str) -> bool:
    """Tell whether a payment was taken for the request of this fingerprint."""
    secrets = provider.settings().secret_key_list()
    return any(hmac.compare_digest(held.fingerprint, _binding(secret, fingerprint)) for secret in secrets)


def find(key: str) -> Held | None:
    """Return the payment that a claim belongs to. In the current unit."""
    row = db.session.scalar(
        select(Payment)
        .join(PaymentClaim, PaymentClaim.holder_id == Payment.id)
        .where(PaymentClaim.key == key)
    )
    return None if row is None else _held(row)


def get(payment_id: str) -> Held:
    """Return a payment. In the current unit."""
    return _held(db.session.get_one(Payment, payment_id))


def is_claimed(keys: Iterable[str]) -> bool:
    """Tell whether anything of this was taken before. In the current unit."""
    taken = select(PaymentClaim.key).where(PaymentClaim.key.in_(list(keys))).limit(1)
    return db.session.scalar(taken) is not None


def claim(keys: Iterable[str], holder_id: str) -> None:
    """Take hashes and authorizations for ever, in the current unit.

    Raises: IntegrityError when somebody was first; the unit must roll back then.
    """
    now = clock.now()
    db.session.add_all(
        [PaymentClaim(key=key, holder_id=holder_id, claimed_at=now) for key in sorted(set(keys))]
    )
    db.session.flush()


def open_payment(payment: Payment, *, status: Status) -> None:
    """Add a new payment, in the current unit."""
    now = clock.now()
    payment.status = status.value
    payment.request_id = logs.origin()
    payment.created_at = now
    payment.tries = 0
    payment.paid_at = now if status is Status.PAID else None
    db.session.add(payment)
    db.session.flush()


def begin(payment_id: str) -> bool:
    """Let one try begin; tell whether this call may. In the current unit."""
    return _move(
        payment_id, Status.PAID, Status.SERVING,
        Payment.tries < MOST_TRIES, Payment.paid_at > clock.now() - RETRY_WITHIN, tries=Payment.tries + 1,
    )  # fmt: skip


def give_back(payment_id: str) -> bool:
    """End a try that certainly served nobody. In the current unit."""
    return _move(payment_id, Status.SERVING, Status.PAID)


def finish(payment_id: str) -> bool:
    """End a try that was served. In the current unit."""
    return _move(payment_id, Status.SERVING, Status.SERVED, served_at=clock.now())


def reopen(payment_id: str) -> bool:
    """Make a payment good again, for what it paid for is given back. In the current unit."""
    return _move(payment_id, Status.SERVED, Status.PAID)


def use_up_open() -> int:
    """Let no payment that is open be tried again; return how many that ends. In the current unit."""
    open_states = (Status.SETTLING.value, Status.PAID.value)
    ended = db.session.execute(
        update(Payment)
        .where(Payment.status.in_(open_states), Payment.tries < MOST_TRIES)
        .values(tries=MOST_TRIES)
        .execution_options(synchronize_session=False)
    )
    return int(ended.rowcount)  # type: ignore[attr-defined]


def arrive(payment_id: str, *, tx_hash: str) -> bool:
    """Note that a signed payment took place, in which transaction. In the current unit."""
    return _move(payment_id, Status.SETTLING, Status.PAID, paid_at=clock.now(), tx_hash=tx_hash)


def void(payment_id: str) -> bool:
    """Note that a signed payment certainly did not take place, and give its claims back. In the current unit."""
    if not _move(payment_id, Status.SETTLING, Status.VOID):
        return False
    db.session.execute(
        delete(PaymentClaim)
        .where(PaymentClaim.holder_id == payment_id)
        .execution_options(synchronize_session=False)
    )
    return True


def landed_elsewhere(payment_id: str, *, tx_hash: str) -> None:
    """Note that a payment stands by another transaction than it did, in the current unit."""
    db.session.execute(
        update(Payment)
        .where(Payment.id == payment_id)
        .values(tx_hash=tx_hash)
        .execution_options(synchronize_session=False)
    )


def lose(payment_id: str) -> bool:
    """Note that a payment that was taken is gone for good. In the current unit.

    Its claims stay: what was served is not to be paid for with what others do with the same authorization.
    """
    return any(_move(payment_id, each, Status.LOST) for each in _TAKEN)


def taken_by(hashes: Iterable[str], *, since: datetime) -> list[Held]:
    """Return the signed payments since then that count as made by one of these transactions. In a reading unit."""
    rows = select(Payment).where(
        Payment.status.in_([each.value for each in _TAKEN]),
        Payment.created_at >= since,
        Payment.rail == Rail.SIGNED.value,
        Payment.tx_hash.in_(list(hashes)),
    )
    return [_held(row) for row in db.session.scalars(rows)]


def lost_by_chain() -> dict[str, int]:
    """Return how many payments were lost on each chain. In a reading unit."""
    rows = (
        select(Payment.chain, func.count()).where(Payment.status == Status.LOST.value).group_by(Payment.chain)
    )
    return dict(db.session.execute(rows).all())


def claimless() -> list[str]:
    """Return payments that took place and that no claim keeps from counting again. In a reading unit."""
    taken = select(PaymentClaim.key).where(PaymentClaim.holder_id == Payment.id).exists()
    return list(db.session.scalars(select(Payment.id).where(Payment.status != Status.VOID.value, ~taken)))


def settling(chain: ChainName, limit: int) -> list[str]:
    """Return the payments of a chain whose submission has not come to its end. In a reading unit."""
    rows = (
        select(Payment.id)
        .where(Payment.status == Status.SETTLING.value, Payment.chain == chain.value)
        .order_by(Payment.created_at)
        .limit(limit)
    )
    return list(db.session.scalars(rows))


def _binding(secret: str, fingerprint: str) -> str:
    key = hashlib.sha256(b"payments" + secret.encode()).digest()
    return hmac.new(key, fingerprint.encode(), hashlib.sha256).hexdigest()


def _move(payment_id: str, source: Status, target: Status, *conditions: Any, **changes: Any) -> bool:
    moved = db.session.execute(
        update(Payment)
        .where(Payment.id == payment_id, Payment.status == source.value, *conditions)
        .values(status=target.value, **changes)
        .returning(Payment.request_id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if moved is None:
        return False
    after_commit(lambda: _tell(moved.request_id, payment_id, target))
    return True


def _tell(request_id: str | None, payment_id: str, status: Status) -> None:
    with logs.caused_by(request_id):
        _log.info("payment_moved", payment_id=payment_id, status=status.value)


def _held(row: Payment) -> Held:
    return Held(
        id=row.id, rail=Rail(row.rail), chain=ChainName(row.chain), payer=row.payer, units=row.units,
        fingerprint=row.fingerprint, signed=row.signed, status=Status(row.status), tries=row.tries,
        tx_hash=row.tx_hash, transaction_id=row.transaction_id, recipient=row.recipient, terms=row.terms,
        paid_at=row.paid_at,
    )  # fmt: skip
