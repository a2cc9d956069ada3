"""events, event_sequence, event_targets, event_deliveries: what happened, and who is notified of it

Revision: 0020; after: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0017"
branch_labels = None
depends_on = None

_ID = sa.Uuid(as_uuid=False)
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_INSTANT = sa.DateTime(timezone=True)


def _partial(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, postgresql_where=where, sqlite_where=where)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "events",
        sa.Column("number", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", _ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("type", sa.String(40), nullable=False),
        sa.Column("agent_id", _ID, nullable=True),
        sa.Column("object_id", sa.String(64), nullable=False),
        sa.Column("dedupe", sa.String(100), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("position"),
        sa.UniqueConstraint("object_id", "dedupe", name="uq_events_dedupe"),
    )
    op.create_index("ix_events_agent_id_position", "events", ["agent_id", "position"])
    op.create_index("ix_events_created_at", "events", ["created_at"])
    _partial("ix_events_new", "events", ["number"], "position IS NULL")
    op.create_table(
        "event_sequence",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "event_targets",
        sa.Column("id", _ID, nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("audience", sa.String(10), nullable=False),
        sa.Column("agent_id", _ID, nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.String(100), nullable=False),
        sa.Column("types", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("status_reason", sa.String(100), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("former_sealed", sa.Text(), nullable=True),
        sa.Column("former_until", _INSTANT, nullable=True),
        sa.Column("holder", _ID, nullable=True),
        sa.Column("lease_until", _INSTANT, nullable=False),
        sa.Column("due_at", _INSTANT, nullable=True),
        sa.Column("paused_until", _INSTANT, nullable=False),
        sa.Column("failing_since", _INSTANT, nullable=True),
        sa.Column("unanswered", sa.Integer(), nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.CheckConstraint("(audience = 'operator') = (agent_id IS NULL)", name="ck_event_targets_audience"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_event_targets_agent_id", "event_targets", ["agent_id"])
    op.create_index("ix_event_targets_due_at", "event_targets", ["due_at"])
    op.create_index("ix_event_targets_created_at", "event_targets", ["created_at", "id"])
    op.create_table(
        "event_deliveries",
        sa.Column("id", _ID, nullable=False),
        sa.Column("target_id", _ID, nullable=False),
        sa.Column("event_id", _ID, nullable=False),
        sa.Column("object_id", sa.String(64), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("next_attempt_at", _INSTANT, nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("delivered_at", _INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("target_id", "event_id", name="uq_event_deliveries_event"),
    )
    op.create_index("ix_event_deliveries_listing", "event_deliveries", ["target_id", "position"])
    op.create_index("ix_event_deliveries_event_id", "event_deliveries", ["event_id"])
    op.create_index("ix_event_deliveries_created_at", "event_deliveries", ["created_at"])
    _partial("ix_event_deliveries_due", "event_deliveries", ["target_id", "next_attempt_at"], "status = 'pending'")
    _partial(
        "ix_event_deliveries_order",
        "event_deliveries",
        ["target_id", "object_id", "position"],
        "status = 'pending'",
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("event_deliveries")
    op.drop_table("event_targets")
    op.drop_table("event_sequence")
    op.drop_table("events")
