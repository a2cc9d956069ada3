"""Earnings of services, and what of them was paid out, refunded and kept as commission.

Earnings are the revenue that the counters of calls have, which the audit compares with charges and payments, less the
payments that a reorganisation reversed: a payout made before that is taken from later earnings. A payout or refund
takes from them as soon as it is recorded, unless it has finally failed. Refunds of payments that no seller has earned
have no service and take nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, exists, select
from sqlalchemy.orm import Session

from app.audit_log import trail
from app.catalog import statistics
from app.catalog.models import PROVIDER_PREFIX, Payout, PayoutKind, PayoutStatus, Service, ServiceTotal
from app.core import clock
from app.core.money import usd_string
from app.core.movement_kinds import MovementKind
from app.core.pagination import PageRequest
from app.credits import accounts
from app.db.tables import sums
from app.identity import service as identity
from app.payments import claimed_payments
from app.payments.claimed_payments import NANOS_PER_UNIT, PaymentStatus
from app.payments.models import Payment
from app.payments.x402.settlement import REVERSAL_WINDOW
from app.state import app_state
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.transactions import relayed

REFUND_PREFIX = "refund:"
"""Begins the reference of a grant that refunds a call."""
ALL_BPS = 10_000
_ACTS = "service.paid", "service.written_off", "service.call_refunded", "payment.refunded"
COUNTS = Payout.status != PayoutStatus.FAILED.value


@dataclass(frozen=True, slots=True)
class Earnings:
    """The earnings of a service. Revenue is paid out, kept as commission, refunded or unpaid; some of that is held."""

    revenue_nanos: int
    refunded_nanos: int
    paid_nanos: int
    commission_nanos: int
    recent_nanos: int
    """The revenue within the holding time."""

    @property
    def unpaid_nanos(self) -> int:
        return self.revenue_nanos - self.refunded_nanos - self.paid_nanos - self.commission_nanos

    @property
    def held_nanos(self) -> int:
        return max(0, min(self.unpaid_nanos, self.recent_nanos))

    @property
    def payable_nanos(self) -> int:
        """Return what a payout would pay now."""
        return payable_of(self.unpaid_nanos - self.held_nanos, app_state().settings.payout_commission_bps)


def payable_of(nanos: int, commission_bps: int) -> int:
    """Return the whole base units of USDC that can be paid of an amount, less their commission."""
    return max(nanos, 0) * (ALL_BPS - commission_bps) // ALL_BPS // NANOS_PER_UNIT * NANOS_PER_UNIT


def commission_of(paid_nanos: int, commission_bps: int) -> int:
    """Return the commission of what is paid, rounded down."""
    return paid_nanos * commission_bps // (ALL_BPS - commission_bps)


def read(session: Session, service_id: str) -> Earnings:
    kinds = [case((Payout.kind == kind.value, Payout.amount_nanos), else_=0) for kind in PayoutKind]
    of_service = Payout.service_id == service_id, COUNTS
    paid, refunded, commission = sums(session, *kinds, Payout.commission_nanos, where=of_service)
    holding = timedelta(hours=app_state().settings.payout_holding_hours)
    return Earnings(
        revenue_nanos=_revenue_nanos(session, service_id),
        refunded_nanos=refunded, paid_nanos=paid, commission_nanos=commission,
        recent_nanos=statistics.revenue_since(session, service_id, clock.now() - holding) if holding else 0,
    )  # fmt: skip


def _revenue_nanos(session: Session, service_id: str, before: datetime | None = None) -> int:
    """Return the revenue less reversed payments, or less those that were made before a time."""
    return statistics.totals(session, service_id).revenue_nanos - _reversed_nanos(session, service_id, before)


def _reversed_nanos(session: Session, service_id: str = "", before: datetime | None = None) -> int:
    prefix, status = f"{PROVIDER_PREFIX}{service_id}", PaymentStatus.REVERSED
    found = claimed_payments.revenue_by_provider(session, prefix=prefix, status=status, before=before)
    return sum(found.values())


def owed_nanos(session: Session) -> int:
    """Return what the treasury owes all sellers: unpaid earnings less commission, and what is being paid."""
    is_of_service = COUNTS & Payout.service_id.is_not(None)
    taken, pending = accounts.sums_of(
        session, case((is_of_service, Payout.amount_nanos + Payout.commission_nanos), else_=0),
        case((Payout.status == PayoutStatus.PENDING.value, Payout.amount_nanos), else_=0),
    )  # fmt: skip
    (revenue,) = accounts.sums_of(session, ServiceTotal.revenue_nanos + 0)
    unpaid = revenue - _reversed_nanos(session) - taken
    return unpaid - unpaid * app_state().settings.payout_commission_bps // ALL_BPS + pending


def owed_to_deleted(session: Session) -> dict[str, int]:
    """Return what is owed for services whose sellers were deleted, by service; some of it may be held."""
    has_earned = exists().where(ServiceTotal.service_id == Service.id, ServiceTotal.revenue_nanos > 0)
    found = session.scalars(select(Service.id).where(~identity.exists_with(Service.agent_id), has_earned))
    owed = {service_id: read(session, service_id).unpaid_nanos for service_id in found.all()}
    return {service_id: nanos for service_id, nanos in owed.items() if nanos > 0}


def find_problems(session: Session) -> list[str]:
    """Return one sentence for each payout or refund that its service, the ledger, a transaction or an act contradicts.

    What takes from earnings knows of each payment that was reversed before: it is no later than the window for that.
    """
    payouts = session.scalars(select(Payout).order_by(Payout.created_at)).all()
    taken: Counter[str] = Counter()
    last: dict[str, datetime] = {}
    for each in payouts:
        if each.service_id is not None and each.status != PayoutStatus.FAILED:
            taken[each.service_id] += each.amount_nanos + each.commission_nanos
            last[each.service_id] = each.created_at - REVERSAL_WINDOW
    credited = {
        f"{REFUND_PREFIX}{each.call_id}": (each.recipient, each.amount_nanos)
        for each in payouts
        if each.kind == PayoutKind.REFUND and not each.chain
    }
    return [
        *(
            f"service {service_id}: {nanos} nano-dollars were paid out, refunded or kept, but it earned {revenue_nanos}"
            for service_id, nanos in taken.items()
            if nanos > (revenue_nanos := _revenue_nanos(session, service_id, last[service_id]))
        ),
        *_wrong_acts(session, payouts),
        *accounts.find_wrong_grants(session, REFUND_PREFIX, credited),
        *_wrong_transactions(session, {each.id: each for each in payouts if each.chain}),
        *_wrong_payments(session),
    ]


def _wrong_acts(session: Session, payouts: Sequence[Payout]) -> Iterator[str]:
    """Yield a sentence for each row and entry of the audit log that differ in service, amount or commission.

    A payout without a chain may have no entry: an operator records those that a restored database lacks.
    """
    names, every = ("service_id", "amount_usd", "commission_usd"), PageRequest(10**9, 0)
    acts = [each.after for action in _ACTS for each in trail.list_entries(session, every, action=action)[0].items]
    recorded = {act["payout_id"]: tuple(act[name] for name in names) for act in acts}
    made = {
        each.id: (each.service_id, usd_string(each.amount_nanos), usd_string(each.commission_nanos))
        for each in payouts
        if each.id in recorded or each.chain or each.kind != PayoutKind.PAYOUT
    }
    for payout_id in sorted(made.keys() | recorded.keys()):
        if made.get(payout_id) != recorded.get(payout_id):
            yield f"payout {payout_id}: the audit log has {recorded.get(payout_id)}, the table {made.get(payout_id)}"


def _wrong_payments(session: Session) -> Iterator[str]:
    """Yield a sentence for each refund that is not of a returned payment, and each such payment without a refund."""
    is_returned = Payment.status.in_([PaymentStatus.REFUNDED.value, PaymentStatus.REVERSED.value])
    is_same = Payout.call_id == Payment.id, Payout.chain == Payment.chain, Payout.recipient == Payment.payer
    covers = Payment.units * NANOS_PER_UNIT >= Payout.amount_nanos
    refunds = select(Payout.id).where(Payout.service_id.is_(None), ~exists().where(*is_same, is_returned, covers))
    yield from (f"refund {each} is not of a payment that was returned" for each in session.scalars(refunds))
    returned = Payment.status == PaymentStatus.REFUNDED.value
    without = select(Payment.id).where(returned, ~exists().where(Payout.call_id == Payment.id))
    yield from (f"payment {each} is refunded, and no refund has it" for each in session.scalars(without))


def _wrong_transactions(session: Session, payouts: dict[str, Payout]) -> Iterator[str]:
    sent = {row.id: row for row in relayed.of_kinds(session, (MovementKind.PAYOUT, MovementKind.REFUND))}
    for payout in payouts.values():
        row, counts = sent.get(payout.id), payout.status != PayoutStatus.FAILED
        if row is None or (payout.kind, payout.chain, payout.recipient, payout.amount_nanos) != (
            row.kind, row.chain, row.to_address, int(row.amount_units) * NANOS_PER_UNIT
        ):  # fmt: skip
            yield f"payout {payout.id} of service {payout.service_id} is not the transaction that was signed for it"
        elif (payout.closed_at or not counts) and counts != (row.status == MovementStatus.CONFIRMED):
            yield f"payout {payout.id} is {payout.status}, and its transaction is {row.status}"
    for transaction_id, row in sent.items():
        if transaction_id not in payouts and row.status != MovementStatus.FAILED:
            yield f"transaction {transaction_id} paid from the treasury, and no payout or refund of a service has it"
