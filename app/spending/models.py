"""Tables of spending controls. Amounts are nano-dollars, days are UTC."""

from datetime import date, datetime

from sqlalchemy import JSON, BigInteger, CheckConstraint, Date, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.tables import ID, UtcDateTime, partial_index
from app.extensions import Model


class SpendingAccount(Authenticated, Model):
    """One row per wallet: its lock, and the sums of its holds in the windows of the day `counted_on`.

    Storing the sums keeps the cost of a check independent of the number of past movements.
    """

    __tablename__ = "spending_accounts"
    not_authenticated = frozenset({"lock_version"})
    __table_args__ = (
        Index("ix_spending_accounts_agent_id", "agent_id"),
        CheckConstraint("day_nanos >= 0 AND week_nanos >= 0 AND month_nanos >= 0", name="ck_spending_accounts_sums"),
    )

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    frozen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    lock_version: Mapped[int] = mapped_column(BigInteger, default=0)
    counted_on: Mapped[date] = mapped_column(Date)
    day_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    week_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    month_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    # That of the wallet's controls, 0 without controls: neither can they be deleted nor older ones put back.
    controls_version: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class SpendingControls(Authenticated, Model):
    """The controls of a wallet, if it has any; a limit of 0 is unlimited, an empty list allows everything."""

    __tablename__ = "spending_controls"
    not_authenticated = frozenset({"updated_at"})
    __table_args__ = (
        CheckConstraint(
            "daily_limit_nanos >= 0 AND weekly_limit_nanos >= 0"
            " AND monthly_limit_nanos >= 0 AND per_tx_limit_nanos >= 0",
            name="ck_spending_controls_limits",
        ),
    )

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    daily_limit_nanos: Mapped[int] = mapped_column(BigInteger)
    weekly_limit_nanos: Mapped[int] = mapped_column(BigInteger)
    monthly_limit_nanos: Mapped[int] = mapped_column(BigInteger)
    per_tx_limit_nanos: Mapped[int] = mapped_column(BigInteger)
    allowed_addresses: Mapped[list[str]] = mapped_column(JSON)
    allowed_domains: Mapped[list[str]] = mapped_column(JSON)
    locked: Mapped[bool]
    # Payments that wait for the owner; 0 is no threshold.
    approval_threshold_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    approve_new_recipients: Mapped[bool] = mapped_column(default=False)
    approve_new_domains: Mapped[bool] = mapped_column(default=False)
    version: Mapped[int] = mapped_column(BigInteger, default=1, server_default="1")
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SpendingHold(Authenticated, Model):
    """The value held for one movement, keyed by its id; counted in the windows of `made_on`."""

    __tablename__ = "spending_holds"
    not_authenticated = frozenset({"state", "budgets", "created_at"})
    __table_args__ = (
        Index("ix_spending_holds_wallet_id_made_on", "wallet_id", "made_on"),
        partial_index("ix_spending_holds_ended", "made_on", where="state <> 'held'"),
        partial_index("ix_spending_holds_budgets", "created_at", where="budgets IS NOT NULL"),
        CheckConstraint("amount_nanos >= 0", name="ck_spending_holds_amount"),
        CheckConstraint("state IN ('held', 'spent', 'released')", name="ck_spending_holds_state"),
    )

    reference: Mapped[str] = mapped_column(String(64), primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    amount_nanos: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(8))
    made_on: Mapped[date] = mapped_column(Date)
    # The session that it counts against, if one was named.
    session_id: Mapped[str | None] = mapped_column(ID)
    # The payee whose weekly permission it counts against, if the owner was not asked because of it.
    permitted_payee: Mapped[str | None] = mapped_column(String(253))
    # Counts against its session only: credits pay for it, and their purchase has counted against the wallet's limits.
    paid_by_credits: Mapped[bool] = mapped_column(default=False)
    # The shared budgets that count it.
    budgets: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApprovedPayee(Authenticated, Model):
    """A recipient or a domain that the owner approved, and what may be paid to it per week without asking again."""

    __tablename__ = "approved_payees"
    not_authenticated = frozenset({"created_at"})
    __table_args__ = (CheckConstraint("week_nanos >= 0", name="ck_approved_payees_week"),)

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    payee: Mapped[str] = mapped_column(String(253), primary_key=True)
    week_nanos: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SpendingSession(Authenticated, Model):
    """A budget for one task, with an expiry: it narrows the limits of its wallet for what names it."""

    __tablename__ = "spending_sessions"
    not_authenticated = frozenset({"created_at"})
    __table_args__ = (
        Index("ix_spending_sessions_wallet_id", "wallet_id", "created_at"),
        Index("ix_spending_sessions_expires_at", "expires_at"),
        CheckConstraint("max_nanos >= 0 AND counted_nanos >= 0", name="ck_spending_sessions_sums"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    max_nanos: Mapped[int] = mapped_column(BigInteger)
    counted_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    domains: Mapped[list[str]] = mapped_column(JSON)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    @property
    def remaining_nanos(self) -> int:
        return max(0, self.max_nanos - self.counted_nanos)
