"""approvals, approved_payees: payments that wait for the owner, and payees that the owner approved

Revision: 0021; after: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; no wallet asks its owner by default."""
    if op.get_context().dialect.name == "postgresql":
        # All locks in one statement: one by one, each waits while queries of the tables before it wait.
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute("LOCK TABLE spending_controls, spending_holds, purchases IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
    for name in ("approve_new_recipients", "approve_new_domains"):
        column = sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())
        op.add_column("spending_controls", column)
    threshold = sa.Column("approval_threshold_nanos", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("spending_controls", threshold)
    op.add_column("spending_holds", sa.Column("permitted_payee", sa.String(253), nullable=True))
    op.add_column("purchases", sa.Column("approval_id", sa.Uuid(as_uuid=False), nullable=True))
    op.add_column("purchases", sa.Column("approved_nanos", sa.BigInteger(), nullable=True))
    op.create_table(
        "approved_payees",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("payee", sa.String(253), nullable=False),
        sa.Column("week_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("week_nanos >= 0", name="ck_approved_payees_week"),
        sa.PrimaryKeyConstraint("wallet_id", "payee"),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("value_nanos", sa.BigInteger(), nullable=False),
        sa.Column("recipient", sa.String(64), nullable=True),
        sa.Column("domain", sa.String(253), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.String(40), nullable=True),
        sa.Column("subject_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("holder", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request_id", sa.String(64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("value_nanos >= 0", name="ck_approvals_value"),
        sa.CheckConstraint(
            "status IN ('awaiting', 'approved', 'executed', 'rejected', 'expired', 'cancelled', 'failed')",
            name="ck_approvals_status",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_approvals_agent_id", "approvals", ["agent_id", "created_at", "id"])
    op.create_index("ix_approvals_created_at", "approvals", ["created_at", "id"])
    is_open = sa.text("status IN ('awaiting', 'approved')")
    op.create_index(
        "ix_approvals_open", "approvals", ["wallet_id", "expires_at"], postgresql_where=is_open, sqlite_where=is_open
    )


def downgrade() -> None:
    """Drop the tables. What was held for a request stays held: release it by cancelling the requests first."""
    op.drop_table("approvals")
    op.drop_table("approved_payees")
    op.drop_column("purchases", "approved_nanos")
    op.drop_column("purchases", "approval_id")
    op.drop_column("spending_holds", "permitted_payee")
    for name in ("approval_threshold_nanos", "approve_new_recipients", "approve_new_domains"):
        op.drop_column("spending_controls", name)
