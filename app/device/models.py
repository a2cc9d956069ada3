"""Misses, counted in the database so that a restart or an emptied Redis forgets none."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.core.columns import UtcDateTime
from app.extensions import Model


class GuessCounter(Model):
    """Misses from one client address (its keyed hash) or from everywhere (`all`) in the present window."""

    __tablename__ = "guess_counters"

    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    window_start: Mapped[datetime] = mapped_column(UtcDateTime)
    misses: Mapped[int] = mapped_column(Integer)
    locked_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    strikes: Mapped[int] = mapped_column(Integer)
