"""Tables of the payments room. Amounts are base units of USDC, instants UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.core.columns import ID, Units, UtcDateTime
from app.extensions import Model


class Payment(Model):
    """A payment for one call, bound to the request that it was presented with. `claims` alone writes `status`."""

    __tablename__ = "payments"
    __table_args__ = (
        Index("ix_payments_open", "status", "created_at"),
        CheckConstraint("tries >= 0", name="ck_payments_tries"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    rail: Mapped[str] = mapped_column(String(10))
    chain: Mapped[str] = mapped_column(String(20))
    payer: Mapped[str | None] = mapped_column(String(64))
    units: Mapped[int] = mapped_column(Units)
    required_units: Mapped[int] = mapped_column(Units)
    provider: Mapped[str] = mapped_column(String(100))
    fingerprint: Mapped[str] = mapped_column(String(64))
    signed: Mapped[bool]
    status: Mapped[str] = mapped_column(String(10))
    tries: Mapped[int] = mapped_column(default=0)
    tx_hash: Mapped[str | None] = mapped_column(String(100))
    # Of a signed payment: the movement that submits it, and what finds it when somebody else did.
    transaction_id: Mapped[str | None] = mapped_column(ID)
    recipient: Mapped[str] = mapped_column(String(64))
    terms: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    paid_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    served_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The request that it was taken for, for the logs.
    request_id: Mapped[str | None] = mapped_column(String(40))


class PaymentClaim(Model):
    """A hash or an authorization that was taken. A row here is kept for ever: it is what makes a payment count once."""

    __tablename__ = "payment_claims"
    __table_args__ = (Index("ix_payment_claims_holder_id", "holder_id"),)

    key: Mapped[str] = mapped_column(String(160), primary_key=True)
    # A payment, or a top-up.
    holder_id: Mapped[str] = mapped_column(ID)
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PaymentHorizon(Model):
    """Since when payments count: one row, written when the database was set back to an earlier state."""

    __tablename__ = "payment_horizons"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    drawn_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PaymentSupply(Model):
    """How many submissions the settlement key could still pay for on a chain, when it was looked at last."""

    __tablename__ = "payment_supplies"

    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    submissions_left: Mapped[int] = mapped_column(BigInteger)
    looked_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PaymentWallet(Model):
    """Which wallet of the service's own plays a role: where payments go, and who submits them."""

    __tablename__ = "payment_wallets"

    role: Mapped[str] = mapped_column(String(20), primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)


class TopUp(Model):
    """Credits that will be granted for a movement to the treasury once it is final."""

    __tablename__ = "topups"
    __table_args__ = (
        Index("ix_topups_open", "chain", "closed_at"),
        Index("ix_topups_wallet_id", "wallet_id"),
    )

    transaction_id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    account_id: Mapped[str] = mapped_column(ID, ForeignKey("credit_accounts.id"))
    chain: Mapped[str] = mapped_column(String(20))
    recipient: Mapped[str] = mapped_column(String(64))
    units: Mapped[int] = mapped_column(Units)
    granted_nanos: Mapped[int | None] = mapped_column(Units)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
