"""The usage tables. Costs are nano-dollars."""

from datetime import date, datetime

from sqlalchemy import BigInteger, CheckConstraint, Date, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables import ID, UtcDateTime
from app.extensions import Model


class UsageLog(Model):
    """One call that was charged; its id is the id of its hold or charge of credits."""

    __tablename__ = "usage_logs"
    __table_args__ = (CheckConstraint("cost_nanos >= 0", name="ck_usage_logs_cost"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    account_id: Mapped[str] = mapped_column(ID)
    api_key_id: Mapped[str] = mapped_column(ID)
    provider: Mapped[str] = mapped_column(String(100))
    model: Mapped[str] = mapped_column(String(200))
    tokens_in: Mapped[int] = mapped_column(BigInteger)
    tokens_out: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    price_version: Mapped[str | None] = mapped_column(String(60))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


Index("ix_usage_logs_history", UsageLog.account_id, UsageLog.created_at.desc(), UsageLog.id.desc())


class UsageByProvider(Model):
    """The sums of an account's log by provider, updated in the same unit, so that a summary does not scan the log.

    `carried_…` is the part of them from entries that were pruned one by one.
    """

    __tablename__ = "usage_by_provider"

    account_id: Mapped[str] = mapped_column(ID, primary_key=True)
    provider: Mapped[str] = mapped_column(String(100), primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    tokens_in: Mapped[int] = mapped_column(BigInteger)
    tokens_out: Mapped[int] = mapped_column(BigInteger)
    carried_calls: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    carried_cost_nanos: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    carried_tokens_in: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    carried_tokens_out: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))


class UsageByMonth(Model):
    """The sums of an account's entries in a month whose partition of the log was dropped."""

    __tablename__ = "usage_by_month"

    account_id: Mapped[str] = mapped_column(ID, primary_key=True)
    provider: Mapped[str] = mapped_column(String(100), primary_key=True)
    first_day: Mapped[date] = mapped_column(Date, primary_key=True)
    calls: Mapped[int] = mapped_column(BigInteger)
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    tokens_in: Mapped[int] = mapped_column(BigInteger)
    tokens_out: Mapped[int] = mapped_column(BigInteger)
