"""The table of claim codes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.columns import ID, UtcDateTime
from app.extensions import Model


class ClaimCode(Authenticated, Model):
    """A code that an agent received: open, claimed or revoked.

    `answer_sealed` holds the owner's key while the claim's response may be replayed, `receipt_digest` the SHA-256 of
    the receipt that a replay with the owner's key requires.
    """

    __tablename__ = "claim_codes"
    not_authenticated = frozenset({"pepper_id", "answer_sealed", "repeats", "created_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    code_hmac: Mapped[str] = mapped_column(String(64), unique=True)
    pepper_id: Mapped[str] = mapped_column(String(32))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    claim_email: Mapped[str | None] = mapped_column(String(254))
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    receipt_digest: Mapped[str | None] = mapped_column(String(64))
    repeats: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
