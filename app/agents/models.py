"""Claim codes by their HMAC."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.core.columns import ID, UtcDateTime
from app.extensions import Model


class ClaimCode(Model):
    """A code that was handed to an agent: open, claimed or revoked.

    `answer_sealed` holds the owner's key for as long as the claim's answer may be repeated.
    """

    __tablename__ = "claim_codes"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    code_hmac: Mapped[str] = mapped_column(String(64), unique=True)
    pepper_id: Mapped[str] = mapped_column(String(32))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    claim_email: Mapped[str | None] = mapped_column(String(254))
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
