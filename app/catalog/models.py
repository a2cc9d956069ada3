"""Tables of the catalog. Prices and revenue are nano-dollars.

No counter is one row for all calls of a service: each call adds to one of several stripes, and readers sum them up.
Counters have no foreign keys, whose checks would lock the service's row for each call.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, Text, text
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import Mapped, mapped_column

from app.core.columns import ID, UtcDateTime
from app.extensions import Model


def _of_service() -> ForeignKey:
    return ForeignKey("services.id", ondelete="CASCADE")


class Service(Model):
    """A service that an agent offers. `total_…` rank the catalog and may lag; the stripes are exact."""

    __tablename__ = "services"
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


Index(
    "ix_services_ranking",
    Service.total_calls.desc(),
    Service.name,
    Service.id,
    postgresql_where=text("status = 'active'"),
    sqlite_where=text("status = 'active'"),
)


class ServiceSpecification(Model):
    """What was read from a service's OpenAPI document when it was given, and the document itself as JSON."""

    __tablename__ = "service_specifications"

    service_id: Mapped[str] = mapped_column(ID, _of_service(), primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    endpoints: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    endpoints_count: Mapped[int] = mapped_column(Integer)
    example: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class ServiceText(Model):
    """What an active service is found by, case-folded; others are not in here.

    Its index by trigrams is in the migration, not here: each database has another kind of it.
    """

    __tablename__ = "service_texts"
    __table_args__ = (
        Unique("service_id", name="uq_service_texts_service_id"),
        Index("ix_service_texts_category", "category"),
    )

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    service_id: Mapped[str] = mapped_column(ID, _of_service())
    category: Mapped[str] = mapped_column(String(200))
    text: Mapped[str] = mapped_column(Text)


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
    service_id: Mapped[str] = mapped_column(ID, _of_service())
    wallet_id: Mapped[str] = mapped_column(ID)
    agent_id: Mapped[str] = mapped_column(ID)
    status: Mapped[str] = mapped_column(String(9))
    reactivated: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ServiceTotal(Model):
    """One stripe of all that a service was ever paid for."""

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
    """How many answers of an hour took how long: one stripe of one bar of the histogram. Kept like the minutes."""

    __tablename__ = "service_latencies"
    __table_args__ = (Index("ix_service_latencies_hour", "hour"),)

    service_id: Mapped[str] = mapped_column(ID, primary_key=True)
    hour: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    bar: Mapped[int] = mapped_column(Integer, primary_key=True)
    stripe: Mapped[int] = mapped_column(Integer, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)


class ServiceCaller(Model):
    """What a wallet has called and spent on a service, ever."""

    __tablename__ = "service_callers"

    service_id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
    spent_nanos: Mapped[int] = mapped_column(BigInteger)


Index(
    "ix_service_callers_ranking",
    ServiceCaller.service_id,
    ServiceCaller.calls.desc(),
    ServiceCaller.spent_nanos.desc(),
    ServiceCaller.wallet_id,
)
