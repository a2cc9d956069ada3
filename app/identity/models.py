"""Tables of identity. Keys are found by their SHA-256; those that listings show are kept sealed besides."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from app.core.columns import ID, UtcDateTime
from app.extensions import Model


class Agent(Model):
    """An AI agent: the owner of wallets and of one credit account with the same id.

    A deleted one leaves its row, without name and e-mail, for what the ledger and other rooms say of it.
    """

    __tablename__ = "agents"
    __table_args__ = (
        Index(
            "ix_agents_listing",
            "created_at",
            "id",
            postgresql_where=text("deleted_at IS NULL"),
            sqlite_where=text("deleted_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    email: Mapped[str | None] = mapped_column(String(254))
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    claimed_email: Mapped[str | None] = mapped_column(String(254))
    frozen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiKey(Model):
    """A key for the X-API-Key header: an agent's (`ak`) or a gateway-only one (`gw`), which has no agent."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint(
            "(kind = 'ak') = (agent_id IS NOT NULL) AND kind IN ('ak', 'gw')", name="api_keys_kind"
        ),
        Index(
            "ix_api_keys_gateway",
            "created_at",
            "id",
            postgresql_where=text("kind = 'gw'"),
            sqlite_where=text("kind = 'gw'"),
        ),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    kind: Mapped[str] = mapped_column(String(2))
    agent_id: Mapped[str | None] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    account_id: Mapped[str] = mapped_column(ID)
    email: Mapped[str | None] = mapped_column(String(254))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    sealed: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class MasterKey(Model):
    """A key for the X-Master-Key header, which opens platform administration."""

    __tablename__ = "master_keys"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    owner_email: Mapped[str | None] = mapped_column(String(254))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    sealed: Mapped[str] = mapped_column(Text)
    active: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class OwnerKey(Model):
    """A key with which the person who claimed an agent signs in; shown once, so kept as a digest only."""

    __tablename__ = "owner_keys"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_email: Mapped[str | None] = mapped_column(String(254))
    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
