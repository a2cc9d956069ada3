"""Tables of the catalog. Prices, revenue and payouts are nano-dollars.

Each call adds to one of several stripes of a counter, and readers sum them up, so that calls do not queue for one row.
Counters have no foreign keys: their checks would lock the service's row for each call.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, Text, and_, select
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import Mapped, column_property, mapped_column

from app.authenticated import Authenticated, AuthenticatedStateMachine
from app.db.state_machine import StateMachine
from app.db.tables import ID, SERIAL, UtcDateTime, partial_index
from app.extensions import Model
from app.payments.models import Payment
from app.wallets.views.history import TransactionView

PROVIDER_PREFIX = "service:"
"""Begins the name of a service among the providers of calls."""


class ServiceStatus(StrEnum):
    """Active services can be found and called; paused ones can resume; retired ones are removed permanently."""

    ACTIVE = "active"
    PAUSED = "paused"
    RETIRED = "retired"


class Service(Authenticated, Model):
    """A service that an agent offers. `total_…` order the catalog and may lag; the stripes are exact."""

    __tablename__ = "services"
    __allow_unmapped__ = True
    not_authenticated = frozenset({
        "name", "description", "pricing_model", "category", "secret_sealed", "total_calls", "total_revenue_nanos",
        "created_at", "updated_at", "suspended_at",
    })  # fmt: skip
    __table_args__ = (
        CheckConstraint("status IN ('active', 'paused', 'retired')", name="ck_services_status"),
        CheckConstraint("price_nanos >= 0 AND price_nanos <= 100000000000", name="ck_services_price"),
        Index("ix_services_agent_id", "agent_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    name: Mapped[str] = mapped_column(String(100))
    description: Mapped[str] = mapped_column(Text)
    base_url: Mapped[str] = mapped_column(String(500))
    pricing_model: Mapped[str] = mapped_column(String(20))
    price_nanos: Mapped[int] = mapped_column(BigInteger)
    category: Mapped[str] = mapped_column(String(50))
    status: Mapped[str] = mapped_column(String(8))
    secret_sealed: Mapped[str] = mapped_column(Text)
    total_calls: Mapped[int] = mapped_column(BigInteger)
    total_revenue_nanos: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # By the operator; its owner cannot resume it then.
    suspended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    secret: str = ""
    """What was sealed, where it is shown: once, after the registration."""

    @property
    def is_suspended(self) -> bool:
        return self.suspended_at is not None


IS_ACTIVE = and_(Service.status == ServiceStatus.ACTIVE.value, Service.suspended_at.is_(None))
"""What is in the catalog and can be called."""
partial_index("ix_services_ranking", Service.total_calls.desc(), Service.name, Service.id, where="status = 'active'")


SERVICES = AuthenticatedStateMachine(
    Service.status,
    initial={ServiceStatus.ACTIVE},
    permitted={
        ServiceStatus.ACTIVE: {ServiceStatus.PAUSED, ServiceStatus.RETIRED},
        ServiceStatus.PAUSED: {ServiceStatus.ACTIVE, ServiceStatus.RETIRED},
    },
    logger=structlog.get_logger(__name__),
)


class ServiceSpecification(Model):
    """A service's OpenAPI document as JSON, and what was read from it."""

    __tablename__ = "service_specifications"

    service_id: Mapped[str] = mapped_column(ID, ForeignKey("services.id", ondelete="CASCADE"), primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    endpoints: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    endpoints_count: Mapped[int] = mapped_column(Integer)
    example: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class ServiceSearchText(Model):
    """The case-folded search text of an active service.

    Its trigram index is defined in the migration, because it differs by database.
    """

    __tablename__ = "service_texts"
    __table_args__ = (
        Unique("service_id", name="uq_service_texts_service_id"),
        Index("ix_service_texts_category", "category"),
    )

    number: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True)
    service_id: Mapped[str] = mapped_column(ID, ForeignKey("services.id", ondelete="CASCADE"))
    category: Mapped[str] = mapped_column(String(200))
    text: Mapped[str] = mapped_column(Text)


class SubscriptionStatus(StrEnum):
    ACTIVE = "active"
    CANCELLED = "cancelled"


class Subscription(Model):
    """A wallet's subscription to a service: active or cancelled."""

    __tablename__ = "subscriptions"
    __table_args__ = (
        Unique("service_id", "wallet_id", name="uq_subscriptions_wallet"),
        CheckConstraint("status IN ('active', 'cancelled')", name="ck_subscriptions_status"),
        Index("ix_subscriptions_agent_id", "agent_id", "created_at", "id"),
        Index("ix_subscriptions_wallet_id", "wallet_id"),
        Index("ix_subscriptions_status", "service_id", "status"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    service_id: Mapped[str] = mapped_column(ID, ForeignKey("services.id", ondelete="CASCADE"))
    wallet_id: Mapped[str] = mapped_column(ID)
    agent_id: Mapped[str] = mapped_column(ID)
    status: Mapped[str] = mapped_column(String(9))
    reactivated: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    service_name: Mapped[str] = column_property(select(Service.name).where(Service.id == service_id).scalar_subquery())


# Without log lines: a service that is retired may have any number of subscriptions.
SUBSCRIPTIONS = StateMachine(
    Subscription.status,
    initial={SubscriptionStatus.ACTIVE},
    permitted={
        SubscriptionStatus.ACTIVE: {SubscriptionStatus.CANCELLED},
        SubscriptionStatus.CANCELLED: {SubscriptionStatus.ACTIVE},
    },
)


class PayoutKind(StrEnum):
    PAYOUT = "payout"
    REFUND = "refund"


class PayoutStatus(StrEnum):
    PENDING = "pending"
    PAID = "paid"
    FAILED = "failed"


class Payout(Model):
    """What was taken from the earnings of a service: paid to its seller, or back to the payer of one of its calls.

    Its id is that of the transaction that pays it. Without a chain, it is a refund in credits, or a payout that the
    operator made elsewhere. Without a service, it returns the payment `call_id`, from which no seller earned. It
    is closed once it can no longer change.
    """

    __tablename__ = "service_payouts"
    __allow_unmapped__ = True
    __table_args__ = (
        CheckConstraint("amount_nanos > 0 AND commission_nanos >= 0", name="ck_service_payouts_amounts"),
        CheckConstraint("kind IN ('payout', 'refund')", name="ck_service_payouts_kind"),
        CheckConstraint("status IN ('pending', 'paid', 'failed')", name="ck_service_payouts_status"),
        Index("ix_service_payouts_service_id", "service_id", "created_at", "id"),
        Index("ix_service_payouts_created_at", "created_at", "id"),
        partial_index("uq_service_payouts_call", "call_id", where="status <> 'failed'", unique=True),
        partial_index("ix_service_payouts_open", "chain", where="closed_at IS NULL"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    service_id: Mapped[str | None] = mapped_column(ID)
    agent_id: Mapped[str | None] = mapped_column(ID)
    kind: Mapped[str] = mapped_column(String(6))
    status: Mapped[str] = mapped_column(String(7))
    amount_nanos: Mapped[int] = mapped_column(BigInteger)
    commission_nanos: Mapped[int] = mapped_column(BigInteger)
    chain: Mapped[str | None] = mapped_column(String(20))
    # An address, or the account that was credited.
    recipient: Mapped[str | None] = mapped_column(String(64))
    call_id: Mapped[str | None] = mapped_column(ID)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    transaction: TransactionView | None = None
    """What pays it, as it was when this row was read."""
    wallet_id: str | None = None
    """The seller's wallet to which it is about to be paid."""
    payment: Payment | None = None
    """What it is about to return."""


class ServiceTotal(Model):
    """One stripe of all paid calls of a service."""

    __tablename__ = "service_totals"

    service_id: Mapped[str] = mapped_column(ID, primary_key=True)
    stripe: Mapped[int] = mapped_column(Integer, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
    revenue_nanos: Mapped[int] = mapped_column(BigInteger)


class ServiceMinute(Model):
    """One stripe of a minute's calls; kept for a little more than a day."""

    __tablename__ = "service_minutes"
    __table_args__ = (Index("ix_service_minutes_minute", "minute"),)

    service_id: Mapped[str] = mapped_column(ID, primary_key=True)
    minute: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    stripe: Mapped[int] = mapped_column(Integer, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
    revenue_nanos: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)


class ServiceLatency(Model):
    """One stripe of one bucket of an hour's latency histogram. Retained like the minutes."""

    __tablename__ = "service_latencies"
    __table_args__ = (Index("ix_service_latencies_hour", "hour"),)

    service_id: Mapped[str] = mapped_column(ID, primary_key=True)
    hour: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    bar: Mapped[int] = mapped_column(Integer, primary_key=True)
    stripe: Mapped[int] = mapped_column(Integer, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)


class ServiceCaller(Model):
    """All calls and spending of a wallet on a service."""

    __tablename__ = "service_callers"

    service_id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
    spent_nanos: Mapped[int] = mapped_column(BigInteger)


Index(
    "ix_service_callers_ranking", ServiceCaller.service_id, ServiceCaller.calls.desc(),
    ServiceCaller.spent_nanos.desc(), ServiceCaller.wallet_id,
)  # fmt: skip
