"""Tables of payments to web services."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.columns import ID, UtcDateTime, partial_index
from app.extensions import Model


class ServicePurchase(Model):
    """What a payment buys: one request to a web service, and its answer once it is complete."""

    __tablename__ = "service_purchases"
    __table_args__ = (
        Index("ix_service_purchases_wallet_id", "wallet_id", "created_at"),
        partial_index("ix_service_purchases_answered", "answered_at", where="answer_sealed IS NOT NULL"),
    )

    # The hash of the transaction that pays.
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    host: Mapped[str] = mapped_column(String(253))
    url: Mapped[str] = mapped_column(Text)
    method: Mapped[str] = mapped_column(String(10))
    # The version of x402 in which the seller is paid: it names the header.
    version: Mapped[int]
    network: Mapped[str] = mapped_column(String(100))
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    answer_status: Mapped[int | None]
    answered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PinnedPayee(Model):
    """The address that a wallet pays at a host on a chain: that of the first payment."""

    __tablename__ = "pinned_payees"

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    host: Mapped[str] = mapped_column(String(253), primary_key=True)
    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    address: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
