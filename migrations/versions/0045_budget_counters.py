"""One table of what budgets count: those that are shared, and those of keys with limits.

Revision: 0045; after: 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0040"
branch_labels = None
depends_on = None

_BUDGETS = ("budgets", "key_limits")
_COUNTED = "used_nanos, window_start, announced_percent"


def upgrade() -> None:
    """Move the counts there, and let each key with limits belong to its own budget."""
    _lock()
    op.create_table(
        "budget_counters",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("limit_nanos", sa.BigInteger(), nullable=True),
        sa.Column("period", sa.String(5), nullable=False),
        sa.Column("used_nanos", sa.BigInteger(), nullable=False),
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("announced_percent", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    for table in _BUDGETS:
        columns = f"id, limit_nanos, period, {_COUNTED}"
        op.execute(f"INSERT INTO budget_counters ({columns}) SELECT {columns} FROM {table}")  # noqa: S608 - constants
        for column in _COUNTED.split(", "):
            op.drop_column(table, column)
    op.execute("INSERT INTO budget_members (member_id, budget_id) SELECT id, id FROM key_limits")


def downgrade() -> None:
    """Move the counts back."""
    _lock()
    op.execute("DELETE FROM budget_members WHERE member_id = budget_id")
    for table in _BUDGETS:
        op.add_column(table, sa.Column("used_nanos", sa.BigInteger(), nullable=False, server_default="0"))
        long_ago = sa.Column(
            "window_start", sa.DateTime(timezone=True), nullable=False, server_default="2000-01-01 00:00:00"
        )
        op.add_column(table, long_ago)
        op.add_column(table, sa.Column("announced_percent", sa.Integer(), nullable=False, server_default="0"))
        op.execute(
            f"UPDATE {table} SET ({_COUNTED}) = (SELECT {_COUNTED} FROM budget_counters c WHERE c.id = {table}.id)"  # noqa: S608 - constants
            " WHERE id IN (SELECT id FROM budget_counters)"
        )
    op.drop_table("budget_counters")


def _lock() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute("LOCK TABLE budgets, budget_members, key_limits IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
