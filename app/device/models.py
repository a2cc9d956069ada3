"""The table of wrong guesses, in the database so that a restart or an emptied Redis loses none."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.columns import UtcDateTime
from app.extensions import Model


class GuessCounter(Model):
    """Misses of one client address (its keyed hash) or service-wide (`all`) in the current window."""

    __tablename__ = "guess_counters"

    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    window_start: Mapped[datetime] = mapped_column(UtcDateTime)
    misses: Mapped[int] = mapped_column(Integer)
    locked_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    strikes: Mapped[int] = mapped_column(Integer)
