"""The table of idempotency keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.columns import ID, UtcDateTime
from app.extensions import Model


class IdempotencyKey(Model):
    """A key of one owner on one route, the record that was made under it, and the stored response."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (
        Index("uq_idempotency_keys_scope", "owner_id", "method", "path", "key", unique=True),
        Index("ix_idempotency_keys_created_at", "created_at"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ID)
    method: Mapped[str] = mapped_column(String(8))
    path: Mapped[str] = mapped_column(String(200))
    key: Mapped[str] = mapped_column(String(255))
    # The HMAC of the bytes, which the previous version compares while both run during an upgrade.
    body_hmac: Mapped[str] = mapped_column(String(64))
    request_hmac: Mapped[str | None] = mapped_column(String(64))
    holder: Mapped[str] = mapped_column(ID)
    subject_id: Mapped[str | None] = mapped_column(ID)
    answer_status: Mapped[int | None]
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
