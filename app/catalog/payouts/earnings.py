"""Earnings of services, and what of them was paid out, refunded and kept as commission.

Earnings are the revenue that the counters of calls have, which the audit compares with charges and payments, less the
payments that a reorganisation reversed: a payout made before that is taken from later earnings. A payout or refund
takes from them as soon as it is recorded, unless it has finally failed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import case, exists, select
from sqlalchemy.orm import Session

from app.catalog import statistics
from app.catalog.models import PROVIDER_PREFIX, Payout, PayoutKind, PayoutStatus, Service, ServiceTotal
from app.core import clock
from app.core.movement_kinds import MovementKind
from app.credits import accounts
from app.db.tables import sums
from app.identity import service as identity
from app.payments import claimed_payments
from app.payments.claimed_payments import NANOS_PER_UNIT, PaymentStatus
from app.state import app_state
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.transactions import relayed

REFUND_PREFIX = "refund:"
"""Begins the reference of a grant that refunds a call."""
_ALL_BPS = 10_000
_COUNTS = Payout.status != PayoutStatus.FAILED.value


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
    return max(nanos, 0) * (_ALL_BPS - commission_bps) // _ALL_BPS // NANOS_PER_UNIT * NANOS_PER_UNIT


def commission_of(paid_nanos: int, commission_bps: int) -> int:
    """Return the commission of what is paid, rounded down."""
    return paid_nanos * commission_bps // (_ALL_BPS - commission_bps)


def read(session: Session, service_id: str) -> Earnings:
    kinds = [case((Payout.kind == kind.value, Payout.amount_nanos), else_=0) for kind in PayoutKind]
    of_service = Payout.service_id == service_id, _COUNTS
    paid, refunded, commission = sums(session, *kinds, Payout.commission_nanos, where=of_service)
    holding = timedelta(hours=app_state().settings.payout_holding_hours)
    return Earnings(
        revenue_nanos=statistics.totals(session, service_id).revenue_nanos - _reversed_nanos(session, service_id),
        refunded_nanos=refunded, paid_nanos=paid, commission_nanos=commission,
        recent_nanos=statistics.revenue_since(session, service_id, clock.now() - holding) if holding else 0,
    )  # fmt: skip


def _reversed_nanos(session: Session, service_id: str = "") -> int:
    """Return what reversed payments were for, of a service or of all."""
    prefix = f"{PROVIDER_PREFIX}{service_id}"
    return sum(claimed_payments.revenue_by_provider(session, prefix=prefix, status=PaymentStatus.REVERSED).values())


def owed_nanos(session: Session) -> int:
    """Return what the treasury owes all sellers: unpaid earnings less commission, and what is being paid."""
    taken, pending = accounts.sums_of(
        session, case((_COUNTS, Payout.amount_nanos + Payout.commission_nanos), else_=0),
        case((Payout.status == PayoutStatus.PENDING.value, Payout.amount_nanos), else_=0),
    )  # fmt: skip
    (revenue,) = accounts.sums_of(session, ServiceTotal.revenue_nanos + 0)
    unpaid = revenue - _reversed_nanos(session) - taken
    return unpaid - unpaid * app_state().settings.payout_commission_bps // _ALL_BPS + pending


def owed_to_deleted(session: Session) -> dict[str, int]:
    """Return what is owed for services whose sellers were deleted, by service; some of it may be held."""
    has_earned = exists().where(ServiceTotal.service_id == Service.id, ServiceTotal.revenue_nanos > 0)
    found = session.scalars(select(Service.id).where(~identity.exists_with(Service.agent_id), has_earned))
    owed = {service_id: read(session, service_id).unpaid_nanos for service_id in found.all()}
    return {service_id: nanos for service_id, nanos in owed.items() if nanos > 0}


def find_problems(session: Session) -> list[str]:
    """Return one sentence for each payout or refund that its service, the ledger or a transaction contradicts."""
    payouts = session.scalars(select(Payout)).all()
    taken: Counter[str] = Counter()
    for each in payouts:
        taken[each.service_id] += each.amount_nanos + each.commission_nanos if _counts(each) else 0
    credited = {
        f"{REFUND_PREFIX}{each.call_id}": (each.recipient, each.amount_nanos)
        for each in payouts
        if each.kind == PayoutKind.REFUND and not each.chain
    }
    return [
        *(
            f"service {service_id}: {nanos} nano-dollars were paid out, refunded or kept, but it earned {revenue_nanos}"
            for service_id, nanos in taken.items()
            if nanos > (revenue_nanos := statistics.totals(session, service_id).revenue_nanos)
        ),
        *accounts.find_wrong_grants(session, REFUND_PREFIX, credited),
        *_wrong_transactions(session, {each.id: each for each in payouts if each.chain}),
    ]


def _counts(payout: Payout) -> bool:
    return payout.status != PayoutStatus.FAILED


def _wrong_transactions(session: Session, payouts: dict[str, Payout]) -> Iterator[str]:
    sent = {row.id: row for row in relayed.of_kinds(session, (MovementKind.PAYOUT, MovementKind.REFUND))}
    for payout in payouts.values():
        row = sent.get(payout.id)
        if row is None or (payout.kind, payout.chain, payout.recipient, payout.amount_nanos) != (
            row.kind, row.chain, row.to_address, int(row.amount_units) * NANOS_PER_UNIT
        ):  # fmt: skip
            yield f"payout {payout.id} of service {payout.service_id} is not the transaction that was signed for it"
        elif (payout.closed_at or not _counts(payout)) and _counts(payout) != (row.status == MovementStatus.CONFIRMED):
            yield f"payout {payout.id} is {payout.status}, and its transaction is {row.status}"
    for transaction_id, row in sent.items():
        if transaction_id not in payouts and row.status != MovementStatus.FAILED:
            yield f"transaction {transaction_id} paid from the treasury, and no payout or refund of a service has it"
