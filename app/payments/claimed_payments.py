"""Claimed payments: their state machine, and the claims by which each is consumed once.

A payment is open for its payer and request while it is submitted and not settled, or settled and neither served nor
expired. Clients that cannot present a signed payment again sign another one: that is not submitted while the first is
open, and the first serves its request.
"""

import hmac
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

import structlog
from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, false, func, or_, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import keyed_digests
from app.core.money import NANOS_PER_USD, TokenAmount
from app.db import leases
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.state_machine import StateMachine
from app.db.tables import insert_into, sums, table_of
from app.events import outbox
from app.events.outbox import EventType
from app.observability import telemetry
from app.payments.models import LatestPayment, Payment, PaymentClaim, PaymentRestoreCutoff
from app.state import app_state

NANOS_PER_UNIT: int = NANOS_PER_USD // 10**USDC.decimals
"""What a base unit of USDC is worth: it counts as dollars."""
MAX_ATTEMPTS = 4
RETRY_WINDOW = timedelta(hours=24)
# Payers share them, so that their rows are few.
_PAYER_LOCKS = 256


class PaymentStatus(StrEnum):
    AUTHORIZED = "authorized"
    SETTLING = "settling"
    PAID = "paid"
    SERVING = "serving"
    SERVED = "served"
    CLOSED = "closed"
    VOID = "void"
    REVERSED = "reversed"
    REFUNDED = "refunded"


_EVENTS = {
    PaymentStatus.PAID: EventType.PAYMENT_RECEIVED,
    PaymentStatus.VOID: EventType.PAYMENT_VOID,
    PaymentStatus.REVERSED: EventType.PAYMENT_REVERSED,
}
"""What operators are notified of. The attempts to serve the call that a payment is for have no events."""
_METERED_EVENTS = {**_EVENTS, PaymentStatus.VOID: None, PaymentStatus.SERVED: EventType.PAYMENT_RECEIVED}


def _announce(session: Session, row: Any, status: PaymentStatus, _reason: str | None) -> None:
    event = (_METERED_EVENTS if row.rail == PaymentRail.UPTO else _EVENTS).get(status)
    # A payment with tries is paid again, because its call was not served.
    if event is None or (status is PaymentStatus.PAID and row.tries):
        return
    data = {
        "payment_id": row.id, "chain": row.chain, "amount": str(TokenAmount(row.units, USDC)),
        "currency": USDC.symbol, "payer": row.payer, "provider": row.provider, "tx_hash": row.tx_hash,
    }  # fmt: skip
    outbox.record(session, event, agent_id=None, object_id=row.id, data=data)


_TAKEN_BACK = {PaymentStatus.REVERSED, PaymentStatus.REFUNDED}
PAYMENTS = StateMachine(
    Payment.status,
    initial={PaymentStatus.SETTLING, PaymentStatus.PAID, PaymentStatus.AUTHORIZED},
    permitted={
        # Only a metered payment: settled once its call was served; else `reversed`, or `closed` if not by its payer.
        PaymentStatus.AUTHORIZED: {
            PaymentStatus.SETTLING, PaymentStatus.VOID, PaymentStatus.CLOSED, PaymentStatus.REVERSED,
        },
        # `void` when it can no longer land, a metered one `authorized`; `closed` when a restore preceded its landing.
        PaymentStatus.SETTLING: {
            PaymentStatus.PAID, PaymentStatus.CLOSED, PaymentStatus.VOID, PaymentStatus.SERVED, PaymentStatus.REVERSED,
            PaymentStatus.AUTHORIZED,
        },
        # `reversed` when a reorg reversed it permanently, `refunded` when it was returned.
        PaymentStatus.PAID: {PaymentStatus.SERVING, PaymentStatus.CLOSED, *_TAKEN_BACK},
        # `paid` again when the call is known not to have been served.
        PaymentStatus.SERVING: {PaymentStatus.SERVED, PaymentStatus.PAID, *_TAKEN_BACK},
        # `paid` again when the purchase was refunded.
        PaymentStatus.SERVED: {PaymentStatus.PAID, *_TAKEN_BACK},
        PaymentStatus.CLOSED: _TAKEN_BACK,
        PaymentStatus.REFUNDED: {PaymentStatus.REVERSED},
    },
    logger=structlog.get_logger(__name__),
    announce=_announce,
    announced=(
        Payment.id, Payment.chain, Payment.units, Payment.provider, Payment.payer, Payment.tx_hash, Payment.tries,
        Payment.rail,
    ),
)  # fmt: skip


class PaymentRail(StrEnum):
    HASH = "hash"
    SIGNED = "signed"
    UPTO = "upto"


PaymentRow: TypeAlias = Payment | Row[*tuple[Any, ...]]
_PAYMENTS, _CLAIMS = table_of(Payment), table_of(PaymentClaim)
_BY_ID = PreparedRead(select(*_PAYMENTS.c).where(_PAYMENTS.c.id == bindparam("of_payment")))
_BY_CLAIM = PreparedRead(
    select(*_PAYMENTS.c)
    .select_from(_CLAIMS)
    .outerjoin(_PAYMENTS, _PAYMENTS.c.id == _CLAIMS.c.holder_id)
    .where(_CLAIMS.c.key == bindparam("of_key"))
)
_RESTORE_CUTOFF = PreparedRead(select(table_of(PaymentRestoreCutoff).c.set_at))
_INSERT_CLAIM = PreparedInsert(PaymentClaim)
_INSERT_UNCLAIMED = PreparedInsert(PaymentClaim, unique=[PaymentClaim.key])
_HAS_ATTEMPTS = and_(_PAYMENTS.c.tries < MAX_ATTEMPTS, _PAYMENTS.c.paid_at > bindparam("paid_after"))
_NEXT_TRY = _PAYMENTS.c.tries + 1
_NO_OUTCOME = {PaymentStatus.AUTHORIZED, PaymentStatus.SETTLING}
_HAS_NO_OUTCOME = Payment.status.in_([each.value for each in _NO_OUTCOME])
COMPLETED = {each for each, to in PAYMENTS.permitted.items() if PaymentStatus.REVERSED in to} - _NO_OUTCOME


def transaction_claim_key(chain: ChainName, tx_hash: str) -> str:
    return f"tx:{chain.value}:{tx_hash}"


def fingerprint_macs(fingerprint: str) -> list[str]:
    """Return a fingerprint's HMAC by each secret; the first is stored. A digest would let passwords be guessed."""
    digests = keyed_digests("payments", fingerprint.encode(), app_state().settings.secret_key_list())
    return [each.hex() for each in digests]


def matches_fingerprint(payment: PaymentRow, fingerprint: str) -> bool:
    return any(hmac.compare_digest(payment.fingerprint, mac) for mac in fingerprint_macs(fingerprint))


def can_be_served(payment: PaymentRow) -> bool:
    """Return whether a payment is paid, has an attempt left, and the time for attempts is not over."""
    is_expired = payment.paid_at is not None and clock.now() > payment.paid_at + RETRY_WINDOW
    return payment.status == PaymentStatus.PAID and payment.tries < MAX_ATTEMPTS and not is_expired


def get(session: Session, payment_id: str) -> PaymentRow:
    """Return a payment. Raises: NoResultFound."""
    payment: PaymentRow = _BY_ID.one(session, {"of_payment": payment_id})
    return payment


def of_request(session: Session, request_id: str, *, limit: int) -> Sequence[Payment]:
    of_id = select(Payment).where(Payment.request_id == request_id).order_by(Payment.created_at)
    return session.scalars(of_id.limit(limit)).all()


def find_claimed(session: Session, key: str) -> PaymentRow | None:
    """Return the payment that a claim belongs to, with the id None if it belongs to a top-up; None without it."""
    return _BY_CLAIM.one_or_none(session, {"of_key": key})


def is_claimed(session: Session, keys: Iterable[str]) -> bool:
    existing = select(PaymentClaim.key).where(PaymentClaim.key.in_(list(keys))).limit(1)
    return session.scalar(existing) is not None


def claim(session: Session, keys: Iterable[str], holder_id: str, *, only_unclaimed: bool = False) -> None:
    """Claim transactions and authorizations permanently.

    Raises: IntegrityError when one is claimed already, except with `only_unclaimed`; the unit must roll back then.
    """
    insert = _INSERT_UNCLAIMED if only_unclaimed else _INSERT_CLAIM
    now = clock.now()
    for key in sorted(set(keys)):
        insert.execute(session, {"key": key, "holder_id": holder_id, "claimed_at": now})


def add_payment(session: Session, payment: Payment, *, status: PaymentStatus) -> None:
    now = clock.now()
    payment.request_id = telemetry.originating_request_id()
    payment.created_at = now
    payment.tries = 0
    payment.paid_at = now if status is PaymentStatus.PAID else None
    PAYMENTS.add(session, payment, status)


def start_attempt(session: Session, payment_id: str) -> bool:
    """Start an attempt to serve the call; return whether this is allowed."""
    moved = PAYMENTS.move(
        session, payment_id, PaymentStatus.PAID, PaymentStatus.SERVING,
        where=_HAS_ATTEMPTS, parameters={"paid_after": clock.now() - RETRY_WINDOW}, tries=_NEXT_TRY,
    )  # fmt: skip
    return bool(moved)


def release_attempt(session: Session, payment_id: str) -> bool:
    """End an attempt that served nothing; return whether it had not ended."""
    return bool(PAYMENTS.move(session, payment_id, PaymentStatus.SERVING, PaymentStatus.PAID))


def mark_served(session: Session, payment_id: str) -> bool:
    """End an attempt that was served; return whether it had not ended."""
    return bool(PAYMENTS.move(session, payment_id, PaymentStatus.SERVING, PaymentStatus.SERVED, served_at=clock.now()))


def reopen(session: Session, payment_id: str) -> None:
    """Allow a payment to be used again because its purchase was refunded."""
    PAYMENTS.move(session, payment_id, PaymentStatus.SERVED, PaymentStatus.PAID)


def restore_cutoff(session: Session) -> datetime | None:
    """Return the time before which payments are refused, None if the database was never restored from a backup."""
    cutoff: datetime | None = _RESTORE_CUTOFF.scalar(session, {})
    return cutoff


def set_restore_cutoff(session: Session, now: datetime) -> int:
    """Refuse payments from before the restore of a backup; return how many open payments that closes.

    A restored database lacks the claims made after its backup; what lands after the cutoff cannot have been claimed
    before. A payment that is being settled is closed when it lands (`mark_landed`): if it cannot land, its claims must
    be released.
    """
    session.merge(PaymentRestoreCutoff(id=1, set_at=now))
    settling = select(func.count()).where(Payment.status == PaymentStatus.SETTLING.value)
    has_attempts = Payment.tries < MAX_ATTEMPTS
    closed = PAYMENTS.move(session, has_attempts, PaymentStatus.PAID, PaymentStatus.CLOSED)
    return len(closed) + (session.scalar(settling) or 0)


def mark_landed(session: Session, payment: PaymentRow, *, tx_hash: str) -> bool:
    """Record where a signed payment landed, if it had no outcome; one from before the restore cutoff is closed."""
    status = PaymentStatus.CLOSED if _is_before_cutoff(session, payment) else PaymentStatus.PAID
    values = {"paid_at": clock.now(), "tx_hash": tx_hash}
    if payment.rail == PaymentRail.UPTO:
        status, values["served_at"] = PaymentStatus.SERVED, values["paid_at"]
    return bool(PAYMENTS.move(session, payment.id, PaymentStatus.SETTLING, status, **values))


def _is_before_cutoff(session: Session, payment: PaymentRow) -> bool:
    cutoff = restore_cutoff(session)
    return cutoff is not None and payment.created_at <= cutoff


def void(session: Session, payment_id: str, *, is_reverted: bool = False) -> bool:
    """Record that a signed payment did not land; return whether it had no outcome.

    Its claims are released. Only a metered one has been served: it keeps them, and is submitted again unless a block
    has reverted it.
    """
    payment = get(session, payment_id)
    if payment.rail == PaymentRail.UPTO and payment.transaction_id is not None:
        again = partial(PAYMENTS.move, session, payment_id, PaymentStatus.SETTLING, PaymentStatus.AUTHORIZED)
        return mark_unpaid(session, payment_id) if is_reverted else bool(again(transaction_id=None, tx_hash=None))
    moved = bool(PAYMENTS.move(session, payment_id, _NO_OUTCOME, PaymentStatus.VOID))
    if moved:
        session.execute(delete(_CLAIMS).where(_CLAIMS.c.holder_id == payment_id))
    return moved


def mark_unpaid(session: Session, payment_id: str, *, by_payer: bool = True) -> bool:
    """Record that a metered payment was served and cannot be collected; return whether it had no outcome."""
    # One from before the cutoff may have been collected.
    is_of_payer = by_payer and not _is_before_cutoff(session, get(session, payment_id))
    status = PaymentStatus.REVERSED if is_of_payer else PaymentStatus.CLOSED
    return bool(PAYMENTS.move(session, payment_id, _NO_OUTCOME, status))


def relink_transaction(session: Session, payment_id: str, *, tx_hash: str) -> None:
    """Record that a payment landed in another transaction than before."""
    session.execute(update(_PAYMENTS).where(_PAYMENTS.c.id == payment_id).values(tx_hash=tx_hash))


def mark_reversed(session: Session, payment_id: str) -> bool:
    """Record a permanent reversal. The claims stay: the same authorization must not pay for another call."""
    return bool(PAYMENTS.move(session, payment_id, COMPLETED, PaymentStatus.REVERSED))


def find_by_transactions(session: Session, hashes: Iterable[str], *, since: datetime) -> list[Payment]:
    """Return the signed payments since then that landed in one of these transactions."""
    is_signed = Payment.rail != PaymentRail.HASH.value, Payment.status.in_([each.value for each in COMPLETED])
    landed = Payment.created_at >= since, Payment.tx_hash.in_(list(hashes))
    return list(session.scalars(select(Payment).where(*is_signed, *landed)))


def reversed_by_chain(session: Session) -> dict[str, int]:
    rows = (
        select(Payment.chain, func.count())
        .where(Payment.status == PaymentStatus.REVERSED.value)
        .group_by(Payment.chain)
    )
    return dict(session.execute(rows).all())


def revenue_by_provider(
    session: Session, *, prefix: str, status: PaymentStatus | None = None, before: datetime | None = None
) -> dict[str, int]:
    """Return what served calls cost, in nano-dollars, by provider with a name that begins with `prefix`.

    With a status, only what the payments that have it now were for; with a time, those that were made before it.
    """
    of_status = [] if status is None else [Payment.status == status.value]
    of_status += [] if before is None else [Payment.created_at < before]
    rows = session.execute(
        select(Payment.provider, func.sum(Payment.required_units))
        .where(Payment.provider.startswith(prefix, autoescape=True), Payment.served_at.is_not(None), *of_status)
        .group_by(Payment.provider)
    )
    return {provider: int(units) * NANOS_PER_UNIT for provider, units in rows}


def find_without_claim(session: Session) -> list[str]:
    claimed = select(PaymentClaim.key).where(PaymentClaim.holder_id == Payment.id).exists()
    return list(session.scalars(select(Payment.id).where(Payment.status != PaymentStatus.VOID.value, ~claimed)))


def is_open_on(chain: ChainName, *statuses: PaymentStatus) -> ColumnElement[bool]:
    return and_(Payment.status.in_([each.value for each in statuses]), Payment.chain == chain.value)


def find_settling(session: Session, chain: ChainName, limit: int, status: PaymentStatus) -> list[str]:
    """Return the oldest payments of a chain that are being settled, or some of another status, in any order."""
    order = Payment.created_at if status is PaymentStatus.SETTLING else func.random()
    rows = select(Payment.id).where(is_open_on(chain, status)).order_by(order).limit(limit)
    return list(session.scalars(rows))


def open_units(session: Session, payer: str | None, chain: str) -> int:
    """Return the units of a payer's signed payments on a chain that have no outcome."""
    return sums(session, Payment.units, where=[_HAS_NO_OUTCOME, Payment.payer == payer, Payment.chain == chain])[0]


def metered_units(session: Session, payer: str | None = None) -> int:
    """Return the units of metered payments that have no outcome and, unless of one payer, of a day's that were lost."""
    lost = PaymentStatus.REVERSED.value, PaymentStatus.CLOSED.value
    is_lost = and_(Payment.status.in_(lost), Payment.created_at > clock.now() - RETRY_WINDOW)
    counted = or_(_HAS_NO_OUTCOME, is_lost) if payer is None else and_(_HAS_NO_OUTCOME, Payment.payer == payer)
    return sums(session, Payment.units, where=[Payment.rail == PaymentRail.UPTO.value, counted])[0]


def has_unpaid(session: Session, payer: str) -> bool:
    """Return whether a call of this payer was served, and its metered payment was not collected."""
    is_unpaid = Payment.rail == PaymentRail.UPTO.value, Payment.status == PaymentStatus.REVERSED.value
    return session.scalar(select(Payment.id).where(Payment.payer == payer, *is_unpaid).limit(1)) is not None


_LATEST = table_of(LatestPayment)
_OPEN = PreparedRead(
    select(*_PAYMENTS.c)
    .join(_LATEST, _LATEST.c.payment_id == _PAYMENTS.c.id)
    .where(_LATEST.c.payer == bindparam("of_payer"), _LATEST.c.fingerprint == bindparam("of_fingerprint"))
)


def lock_payer(session: Session, payer: str | None) -> None:
    """Let the unit decide alone about payments of a payer, until it ends."""
    leases.lock(session, f"payer:{zlib.crc32(str(payer).encode()) % _PAYER_LOCKS}")


class PaymentIsOpen(Exception):
    """Another payment of this payer for this request was recorded first: the unit must roll back."""


def is_open(payment: PaymentRow) -> bool:
    """Return whether a payment is being settled, or is settled and can still serve its request."""
    return payment.status == PaymentStatus.SETTLING or can_be_served(payment)


def find_open(session: Session, payer: str, fingerprint: str) -> PaymentRow | None:
    for mac in fingerprint_macs(fingerprint):
        latest: PaymentRow | None = _OPEN.one_or_none(session, {"of_payer": payer, "of_fingerprint": mac})
        if latest is not None and is_open(latest):
            return latest
    return None


def record_open(session: Session, payment: Payment) -> None:
    """Make a new signed payment the open one of its payer and request. Raises: PaymentIsOpen if another one is.

    Of concurrent units, one succeeds; the others are refused once it has committed.
    """
    names = {"of_payer": payment.payer, "of_fingerprint": payment.fingerprint}
    latest = _OPEN.one_or_none(session, names)
    if latest is not None and is_open(latest):
        raise PaymentIsOpen
    replaced = false() if latest is None else _LATEST.c.payment_id == latest.id
    written = session.scalar(
        insert_into(session, LatestPayment)
        .values(payer=payment.payer, fingerprint=payment.fingerprint, payment_id=payment.id)
        .on_conflict_do_update(index_elements=["payer", "fingerprint"], set_={"payment_id": payment.id}, where=replaced)
        .returning(LatestPayment.payment_id)
    )
    if written is None:
        raise PaymentIsOpen
