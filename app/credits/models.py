"""Tables of the ledger. Amounts are nano-dollars.

A ledger entry moves an amount between two buckets of an account: `issuance` (granted, outside), `available`,
`held` and `revenue` (spent, outside). Issuance and revenue of the whole service are derived, so that
no row is shared by all accounts.
"""

from datetime import date, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Date, ForeignKey, Index, Integer, String, false, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables import ID, UtcDateTime, partial_index
from app.extensions import Model

_BUCKETS = "('issuance', 'available', 'held', 'revenue')"


class CreditAccount(Model):
    """The balance of an owner (an agent or a gateway-only key): the sums of its ledger entries, updated with them."""

    __tablename__ = "credit_accounts"
    __table_args__ = (
        CheckConstraint("available_nanos >= 0 AND held_nanos >= 0", name="ck_credit_accounts_not_negative"),
        CheckConstraint(
            "available_nanos + held_nanos = granted_nanos - spent_nanos", name="ck_credit_accounts_balance"
        ),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    available_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    held_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    granted_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    spent_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    # What deleted holds had charged: the part of `spent_nanos` that no row explains.
    carried_nanos: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # Calls with it are counted in budgets too: the statements for calls without a budget leave it out. Never reset.
    has_budgets: Mapped[bool] = mapped_column(default=False, server_default=false())
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CreditLedgerEntry(Model):
    """An amount that moved from the `debit` bucket to the `credit` bucket of one account, append-only."""

    __tablename__ = "credit_postings"
    __table_args__ = (
        Index("ix_credit_postings_account_id", "account_id"),
        CheckConstraint("amount_nanos > 0", name="ck_credit_postings_amount"),
        CheckConstraint(
            f"debit IN {_BUCKETS} AND credit IN {_BUCKETS} AND debit <> credit", name="ck_credit_postings_buckets"
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    reference: Mapped[str] = mapped_column(String(120), unique=True)
    kind: Mapped[str] = mapped_column(String(8))
    account_id: Mapped[str] = mapped_column(ID, ForeignKey("credit_accounts.id"))
    debit: Mapped[str] = mapped_column(String(10))
    credit: Mapped[str] = mapped_column(String(10))
    amount_nanos: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CreditHold(Model):
    """Credits reserved for one call until they are settled or released; a hold with an expired lease lapses.

    `lapsed` is settled at an estimate that the actual cost may still replace. `memo` belongs to the package that
    placed the hold, for use when it lapses; this package does not read it.
    """

    __tablename__ = "credit_holds"
    __table_args__ = (
        partial_index("ix_credit_holds_open", "lease_until", where="state = 'held'"),
        partial_index("ix_credit_holds_ended", "created_at", where="state <> 'held'"),
        CheckConstraint("amount_nanos >= 0 AND settled_nanos >= 0", name="ck_credit_holds_amounts"),
        CheckConstraint("state IN ('held', 'lapsed', 'settled', 'released')", name="ck_credit_holds_state"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    account_id: Mapped[str] = mapped_column(ID, ForeignKey("credit_accounts.id"))
    amount_nanos: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(8))
    settled_nanos: Mapped[int] = mapped_column(BigInteger)
    unpaid_nanos: Mapped[int] = mapped_column(BigInteger)
    memo: Mapped[dict[str, Any]] = mapped_column(JSON)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class GrantBudget(Model):
    """The automatic grants of the whole service on a UTC day."""

    __tablename__ = "grant_budgets"
    __table_args__ = (CheckConstraint("granted_nanos >= 0", name="ck_grant_budgets_granted"),)

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    granted_nanos: Mapped[int] = mapped_column(BigInteger)
