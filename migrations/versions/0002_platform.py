"""platform administration, retention

Revision: 0002; after: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_CARRIED = ("carried_calls", "carried_cost_nanos", "carried_tokens_in", "carried_tokens_out")
_PARTIAL = (
    ("ix_agents_listing", "agents", ["created_at", "id"], "deleted_at IS NULL"),
    ("ix_api_keys_gateway", "api_keys", ["created_at", "id"], "kind = 'gw'"),
    ("ix_credit_holds_ended", "credit_holds", ["created_at"], "state <> 'held'"),
    ("ix_spending_holds_ended", "spending_holds", ["made_on"], "state <> 'held'"),
    ("ix_transactions_queries", "transactions", ["created_at"], "type = 'trading_query'"),
)


def _counter(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _take_locks() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    # All at once: while one is waited for, nobody can use those before it.
    op.execute("SET LOCAL statement_timeout = '2s'")
    op.execute(
        "DO $$ BEGIN"
        " LOCK TABLE agents, retired_keys, credit_accounts, usage_by_provider IN ACCESS EXCLUSIVE MODE;"
        " LOCK TABLE api_keys, credit_holds, spending_holds, transactions, transaction_events IN SHARE MODE;"
        " END $$"
    )
    op.execute("SET LOCAL statement_timeout = 0")


def upgrade() -> None:
    """Go forward."""
    _take_locks()
    op.create_table(
        "audit_heads",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("proof", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor_kind", sa.String(length=20), nullable=False),
        sa.Column("actor_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("actor_name", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("subject_kind", sa.String(length=20), nullable=False),
        sa.Column("subject_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.Column("client_address", sa.String(length=60), nullable=True),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_audit_entries_subject_id", "audit_entries", ["subject_id", "number"])
    op.create_index("ix_audit_entries_action", "audit_entries", ["action", "number"])

    # Plain statements, no batches: those would make tables anew, and SQLite then deletes what refers to them.
    op.add_column("agents", sa.Column("frozen_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("agents", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_index("ix_agents_created_at", "agents")
    # An agent is frozen whose wallets are.
    op.execute(
        "UPDATE agents SET frozen_at = (SELECT max(frozen_at) FROM spending_accounts"
        " WHERE spending_accounts.agent_id = agents.id)"
    )
    op.add_column("retired_keys", sa.Column("empty_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("credit_accounts", _counter("carried_nanos"))
    for name in _CARRIED:
        op.add_column("usage_by_provider", _counter(name))
    for name, table, columns, where in _PARTIAL:
        op.create_index(name, table, columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
    op.create_index("ix_transaction_events_at", "transaction_events", ["at"])


def downgrade() -> None:
    """Go back. What was pruned stays gone; the sums of accounts keep their value, unexplained."""
    op.drop_index("ix_transaction_events_at", "transaction_events")
    for name, table, _, _ in _PARTIAL:
        op.drop_index(name, table)
    for name in _CARRIED:
        op.drop_column("usage_by_provider", name)
    op.drop_column("credit_accounts", "carried_nanos")
    op.drop_column("retired_keys", "empty_since")
    op.drop_column("agents", "deleted_at")
    op.drop_column("agents", "frozen_at")
    op.create_index("ix_agents_created_at", "agents", ["created_at"])
    op.drop_table("audit_entries")
    op.drop_table("audit_heads")
