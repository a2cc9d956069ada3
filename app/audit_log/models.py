"""Tables of the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.columns import ID, UtcDateTime
from app.extensions import Model


class AuditEntry(Model):
    """One administrative act, append-only; numbers have no gaps, and `hash` covers the entry and the previous hash."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        Index("ix_audit_entries_subject_id", "subject_id", "number"),
        Index("ix_audit_entries_action", "action", "number"),
    )

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(ID, unique=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor_kind: Mapped[str] = mapped_column(String(20))
    actor_id: Mapped[str | None] = mapped_column(ID)
    actor_name: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(40))
    subject_kind: Mapped[str] = mapped_column(String(20))
    subject_id: Mapped[str | None] = mapped_column(ID)
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    request_id: Mapped[str | None] = mapped_column(String(40))
    client_address: Mapped[str | None] = mapped_column(String(60))
    hash: Mapped[str] = mapped_column(String(64))


class AuditHead(Model):
    """The end of the chain, and the lock of its writers; `sealed` is the chain's key, `proof` authenticates the end."""

    __tablename__ = "audit_heads"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(String(64))
    proof: Mapped[str] = mapped_column(String(64))
    sealed: Mapped[str] = mapped_column(String(200))
