"""Tables of the trading package."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.columns import UtcDateTime
from app.extensions import Model


class ExchangeBudget(Model):
    """A share of the exchange's rate limit: the time at which it is fully replenished, in milliseconds."""

    __tablename__ = "exchange_budgets"
    __table_args__ = (Index("ix_exchange_budgets_whole_at_ms", "whole_at_ms"),)

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    whole_at_ms: Mapped[int] = mapped_column(BigInteger)


class ExchangeMarkets(Model):
    """The last list of markets, for when the exchange is unavailable."""

    __tablename__ = "exchange_markets"

    exchange: Mapped[str] = mapped_column(String(20), primary_key=True)
    markets: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    read_at: Mapped[datetime] = mapped_column(UtcDateTime)
