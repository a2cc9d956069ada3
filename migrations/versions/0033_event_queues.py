"""event_queues, and the queue, creator and last messages of event_targets

Revision: 0033; after: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_ID = sa.Uuid(as_uuid=False)
_INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table and columns; the worker puts targets into queues, also those that the release before adds."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.create_table(
        "event_queues",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("served_at", _INSTANT, nullable=False),
        sa.Column("first_until", _INSTANT, nullable=False),
        sa.Column("second_until", _INSTANT, nullable=False),
        sa.Column("used_until", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.add_column("event_targets", sa.Column("queue", sa.String(80), nullable=True))
    op.add_column("event_targets", sa.Column("created_by", _ID, nullable=True))
    op.add_column("event_targets", sa.Column("sent", sa.JSON(), nullable=True))
    op.create_index("ix_event_targets_queue", "event_targets", ["queue"])
    targets = sa.table("event_targets", sa.column("id", _ID), sa.column("audience"), sa.column("types", sa.JSON()))
    connection = op.get_bind()
    rows = connection.execute(sa.select(targets.c.id, targets.c.types).where(targets.c.audience == "owner")).all()
    for target_id, types in rows:
        # Owners do not choose types: theirs are the notices of the release.
        new = [*types, *(["controls.changed"] if "controls.changed" not in types else [])]
        connection.execute(targets.update().where(targets.c.id == target_id).values(types=new))


def downgrade() -> None:
    """Drop the table and columns; the release before delivers by the time since when a target is due."""
    op.drop_index("ix_event_targets_queue", "event_targets")
    for name in ("sent", "created_by", "queue"):
        op.drop_column("event_targets", name)
    op.drop_table("event_queues")
