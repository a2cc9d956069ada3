"""The identity tables. Keys are found by their SHA-256; those that listings show are also stored sealed."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.tables import ID, SERIAL, UtcDateTime, partial_index
from app.extensions import Model


class Agent(Authenticated, Model):
    """An AI agent: the owner of wallets and of one credit account with the same id.

    A deleted one leaves its row, without name and email, because the ledger and other tables refer to it.
    """

    __tablename__ = "agents"
    not_authenticated = frozenset({"name", "created_at", "requests_per_minute"})
    __table_args__ = (partial_index("ix_agents_listing", "created_at", "id", where="deleted_at IS NULL"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    email: Mapped[str | None] = mapped_column(String(254))
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    claimed_email: Mapped[str | None] = mapped_column(String(254))
    frozen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Instead of RATE_LIMIT_PER_KEY.
    requests_per_minute: Mapped[int | None] = mapped_column()
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiKey(Authenticated, Model):
    """A key for the X-API-Key header: an agent's (`ak`) or a gateway-only one (`gw`), which has no agent.

    A gateway-only key has an account of its own; one with a row in `key_limits` spends from an agent's.
    """

    __tablename__ = "api_keys"
    not_authenticated = frozenset({"email", "sealed", "created_at"})
    __table_args__ = (
        CheckConstraint("(kind = 'ak') = (agent_id IS NOT NULL) AND kind IN ('ak', 'gw')", name="api_keys_kind"),
        partial_index("ix_api_keys_gateway", "created_at", "id", where="kind = 'gw'"),
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


class KeyLimit(Authenticated, Model):
    """What a key with limits may spend from its agent's account, and on what; it has the key's id."""

    __tablename__ = "key_limits"
    not_authenticated = frozenset({"name", "tags", "created_at"})
    __table_args__ = (CheckConstraint("period IN ('day', 'week', 'month', 'total')", name="ck_key_limits_period"),)

    id: Mapped[str] = mapped_column(ID, ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True)
    account_id: Mapped[str] = mapped_column(ID, index=True)
    name: Mapped[str | None] = mapped_column(String(100))
    tags: Mapped[list[str]] = mapped_column(JSON)
    limit_nanos: Mapped[int | None] = mapped_column(BigInteger)
    period: Mapped[str] = mapped_column(String(5))
    models: Mapped[list[str]] = mapped_column(JSON)
    requests_per_minute: Mapped[int | None] = mapped_column()
    tokens_per_minute: Mapped[int | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Budget(Authenticated, Model):
    """A budget over agents, keys and wallets (decision 0150)."""

    __tablename__ = "budgets"
    not_authenticated = frozenset({"name", "created_at"})
    __table_args__ = (CheckConstraint("period IN ('day', 'week', 'month', 'total')", name="ck_budgets_period"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    parent_id: Mapped[str | None] = mapped_column(ID)
    limit_nanos: Mapped[int | None] = mapped_column(BigInteger)
    period: Mapped[str] = mapped_column(String(5), default="total")
    members: Mapped[dict[str, list[Any]]] = mapped_column(JSON)
    velocity_payments: Mapped[int | None] = mapped_column()
    velocity_nanos: Mapped[int | None] = mapped_column(BigInteger)
    velocity_minutes: Mapped[int | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BudgetCounter(Model):
    """What a row of `budgets` or `key_limits` with the same id has held and spent since `window_start`.

    `limit_nanos` and `period` are copies of that row's. `used_nanos` changes while the counter is locked.
    """

    __tablename__ = "budget_counters"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    limit_nanos: Mapped[int | None] = mapped_column(BigInteger)
    period: Mapped[str] = mapped_column(String(5))
    used_nanos: Mapped[int] = mapped_column(BigInteger, default=0)
    window_start: Mapped[datetime] = mapped_column(UtcDateTime)
    announced_percent: Mapped[int] = mapped_column(default=0)


class BudgetMember(Model):
    """An agent, a key or a wallet that belongs to a budget, or to one that is part of it. Derived from `budgets`.

    A key with limits also belongs to its own, which has its id.
    """

    __tablename__ = "budget_members"

    member_id: Mapped[str] = mapped_column(ID, primary_key=True)
    budget_id: Mapped[str] = mapped_column(ID, primary_key=True)


class BudgetReturn(Model):
    """What was held against a budget at `held_at` and not spent, until it is subtracted; negative if spent beyond."""

    __tablename__ = "budget_returns"

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True)
    budget_id: Mapped[str] = mapped_column(ID, index=True)
    nanos: Mapped[int] = mapped_column(BigInteger)
    held_at: Mapped[datetime] = mapped_column(UtcDateTime)


class MasterKey(Authenticated, Model):
    """A key for the X-Master-Key header, for platform administration."""

    __tablename__ = "master_keys"
    not_authenticated = frozenset({"name", "sealed", "created_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    owner_email: Mapped[str | None] = mapped_column(String(254))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    sealed: Mapped[str] = mapped_column(Text)
    active: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class OwnerKey(Authenticated, Model):
    """A key with which an agent's owner signs in; shown once, so only its digest is stored."""

    __tablename__ = "owner_keys"
    not_authenticated = frozenset({"created_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_email: Mapped[str | None] = mapped_column(String(254))
    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class OwnerGrant(Authenticated, Model):
    """What an owner has permitted an application. Its access token is the key with the same id, once it has one."""

    __tablename__ = "oauth_grants"
    not_authenticated = frozenset({"created_at", "used_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    client_id: Mapped[str] = mapped_column(String(500))
    client_name: Mapped[str] = mapped_column(String(100))
    client_host: Mapped[str] = mapped_column(String(260))
    resource: Mapped[str] = mapped_column(String(500))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    wallet_id: Mapped[str | None] = mapped_column(ID)
    session_id: Mapped[str | None] = mapped_column(ID)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
