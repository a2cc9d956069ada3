"""Tables of payments and top-ups. Amounts are base units of USDC, instants UTC."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.tables import ID, Units, UtcDateTime, partial_index
from app.extensions import Model


class Payment(Model):
    """A payment for one call, bound to the request that it was presented with."""

    __tablename__ = "payments"
    __table_args__ = (
        Index("ix_payments_open", "status", "created_at"),
        Index("ix_payments_created_at", "created_at", "id"),
        partial_index("ix_payments_request_id", "request_id", where="request_id IS NOT NULL"),
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
    # A signed payment's submitting transaction, and what finds it if another party submitted it.
    transaction_id: Mapped[str | None] = mapped_column(ID)
    recipient: Mapped[str] = mapped_column(String(64))
    terms: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    paid_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    served_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The request that it pays for.
    request_id: Mapped[str | None] = mapped_column(String(40))


class PaymentClaim(Model):
    """A claimed transaction or authorization. Rows are never deleted once a payment landed: each is consumed once."""

    __tablename__ = "payment_claims"
    __table_args__ = (Index("ix_payment_claims_holder_id", "holder_id"),)

    key: Mapped[str] = mapped_column(String(160), primary_key=True)
    # A payment, or a top-up.
    holder_id: Mapped[str] = mapped_column(ID)
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class LatestPayment(Model):
    """The latest signed payment of a payer for a request: while it is open, no other one of theirs is submitted."""

    __tablename__ = "open_payments"

    payer: Mapped[str] = mapped_column(String(64), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)
    payment_id: Mapped[str] = mapped_column(ID)


class SettlementRisk(Model):
    """The network fee of a submission that its payer can make fail: reserved while it is open, kept once it failed."""

    __tablename__ = "settlement_risks"
    __table_args__ = (
        Index("ix_settlement_risks_payer", "payer", "created_at"),
        Index("ix_settlement_risks_chain", "chain", "created_at"),
        CheckConstraint("cost_nanos >= 0", name="ck_settlement_risks_cost"),
    )

    payment_id: Mapped[str] = mapped_column(ID, primary_key=True)
    chain: Mapped[str] = mapped_column(String(20))
    payer: Mapped[str] = mapped_column(String(64))
    # The authorization's claim: it is not submitted again once that failed.
    claim: Mapped[str] = mapped_column(String(160))
    # Whether it counts against the budget of failures: see `TransactionDraft.is_risky`.
    risky: Mapped[bool]
    failed: Mapped[bool]
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PaymentRestoreCutoff(Model):
    """The restore cutoff: one row, written when the database was restored from a backup."""

    __tablename__ = "payment_restore_cutoffs"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    set_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SettlementGasReserve(Model):
    """What the service's wallets held on a chain when they were last checked: gas as submissions, and USDC."""

    __tablename__ = "settlement_gas_reserves"

    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    submissions_left: Mapped[int] = mapped_column(BigInteger)
    treasury_units: Mapped[int | None] = mapped_column(Units)
    read_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ServiceWallet(Authenticated, Model):
    """The service's wallet in a role: recipient or submitter of payments."""

    __tablename__ = "payment_wallets"
    not_authenticated = frozenset()

    role: Mapped[str] = mapped_column(String(20), primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)


class TopUp(Model):
    """Credits to grant for a transfer to the treasury once it is confirmed; closed once that is final.

    The ledger's grants for it less what was taken back are `granted_nanos` plus `owed_nanos`.
    """

    __tablename__ = "topups"
    __table_args__ = (
        Index("ix_topups_open", "chain", "closed_at"), Index("ix_topups_wallet_id", "wallet_id"),
        Index("ix_topups_account_id", "account_id"),
    )  # fmt: skip

    transaction_id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    account_id: Mapped[str] = mapped_column(ID, ForeignKey("credit_accounts.id"))
    chain: Mapped[str] = mapped_column(String(20))
    recipient: Mapped[str] = mapped_column(String(64))
    units: Mapped[int] = mapped_column(Units)
    granted_nanos: Mapped[int | None] = mapped_column(Units)
    # What was granted for a transfer that can no longer land, and was not collected yet.
    owed_nanos: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
