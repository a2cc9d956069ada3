"""services, their subscriptions and counters, and the index that finds them

Revision: 0006; after: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# On SQLite each change of the table is repeated in a virtual one beside it. A later migration that makes
# `service_texts` anew (as batch operations do) has to make the triggers anew, too.
_SQLITE_INDEX = (
    "CREATE VIRTUAL TABLE search_trigrams USING fts5"
    "(text, content='service_texts', content_rowid='number', tokenize='trigram case_sensitive 1')",
    "CREATE TRIGGER search_trigrams_insert AFTER INSERT ON service_texts BEGIN"
    " INSERT INTO search_trigrams (rowid, text) VALUES (new.number, new.text); END",
    "CREATE TRIGGER search_trigrams_delete AFTER DELETE ON service_texts BEGIN"
    " INSERT INTO search_trigrams (search_trigrams, rowid, text) VALUES ('delete', old.number, old.text); END",
    "CREATE TRIGGER search_trigrams_update AFTER UPDATE OF text ON service_texts BEGIN"
    " INSERT INTO search_trigrams (search_trigrams, rowid, text) VALUES ('delete', old.number, old.text);"
    " INSERT INTO search_trigrams (rowid, text) VALUES (new.number, new.text); END",
)
# Any role that may create objects in the database may create this extension; where the server lacks it, the
# search works by reading every text. Services change seldom and are searched often: no list of pending changes is kept.
_POSTGRESQL_INDEX = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_trgm') THEN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
        CREATE INDEX search_trigrams ON service_texts USING gin (text gin_trgm_ops) WITH (fastupdate = off);
    END IF;
END $$
"""


def _make_search_index() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_POSTGRESQL_INDEX)
        return
    for statement in _SQLITE_INDEX:
        op.execute(statement)


def _drop_search_index() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP INDEX IF EXISTS search_trigrams")
        return
    for name in ("insert", "delete", "update"):
        op.execute(f"DROP TRIGGER search_trigrams_{name}")
    op.execute("DROP TABLE search_trigrams")


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "service_callers",
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "wallet_id"),
    )
    with op.batch_alter_table("service_callers", schema=None) as batch_op:
        batch_op.create_index(
            "ix_service_callers_ranking",
            [
                "service_id",
                sa.literal_column("calls DESC"),
                sa.literal_column("spent_nanos DESC"),
                "wallet_id",
            ],
            unique=False,
        )

    op.create_table(
        "service_latencies",
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bar", sa.Integer(), nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "hour", "bar", "stripe"),
    )
    with op.batch_alter_table("service_latencies", schema=None) as batch_op:
        batch_op.create_index("ix_service_latencies_hour", ["hour"], unique=False)

    op.create_table(
        "service_minutes",
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("revenue_nanos", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "minute", "stripe"),
    )
    with op.batch_alter_table("service_minutes", schema=None) as batch_op:
        batch_op.create_index("ix_service_minutes_minute", ["minute"], unique=False)

    op.create_table(
        "service_totals",
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("revenue_nanos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "stripe"),
    )
    op.create_table(
        "services",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("base_url", sa.String(length=500), nullable=False),
        sa.Column("pricing_model", sa.String(length=20), nullable=False),
        sa.Column("price_nanos", sa.BigInteger(), nullable=False),
        sa.Column("category", sa.String(length=50), nullable=False),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("secret_sealed", sa.Text(), nullable=False),
        sa.Column("total_calls", sa.BigInteger(), nullable=False),
        sa.Column("total_revenue_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused', 'retired')", name="ck_services_status"),
        sa.CheckConstraint("price_nanos >= 0 AND price_nanos <= 100000000000", name="ck_services_price"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("services", schema=None) as batch_op:
        batch_op.create_index("ix_services_agent_id", ["agent_id", "created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_services_ranking",
            [sa.literal_column("total_calls DESC"), "name", "id"],
            unique=False,
            postgresql_where=sa.text("status = 'active'"),
            sqlite_where=sa.text("status = 'active'"),
        )

    op.create_table(
        "service_specifications",
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("endpoints", sa.JSON(), nullable=False),
        sa.Column("endpoints_count", sa.Integer(), nullable=False),
        sa.Column("example", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("service_id"),
    )
    op.create_table(
        "service_texts",
        sa.Column(
            "number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("category", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("service_id", name="uq_service_texts_service_id"),
    )
    with op.batch_alter_table("service_texts", schema=None) as batch_op:
        batch_op.create_index("ix_service_texts_category", ["category"], unique=False)
    _make_search_index()

    op.create_table(
        "subscriptions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("status", sa.String(length=9), nullable=False),
        sa.Column("reactivated", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('active', 'cancelled')", name="ck_subscriptions_status"),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("service_id", "wallet_id", name="uq_subscriptions_wallet"),
    )
    with op.batch_alter_table("subscriptions", schema=None) as batch_op:
        batch_op.create_index("ix_subscriptions_agent_id", ["agent_id", "created_at", "id"], unique=False)
        batch_op.create_index("ix_subscriptions_status", ["service_id", "status"], unique=False)
        batch_op.create_index("ix_subscriptions_wallet_id", ["wallet_id"], unique=False)


def downgrade() -> None:
    """Go back."""
    with op.batch_alter_table("subscriptions", schema=None) as batch_op:
        batch_op.drop_index("ix_subscriptions_wallet_id")
        batch_op.drop_index("ix_subscriptions_status")
        batch_op.drop_index("ix_subscriptions_agent_id")

    op.drop_table("subscriptions")
    _drop_search_index()
    with op.batch_alter_table("service_texts", schema=None) as batch_op:
        batch_op.drop_index("ix_service_texts_category")

    op.drop_table("service_texts")
    op.drop_table("service_specifications")
    with op.batch_alter_table("services", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_services_ranking",
            postgresql_where=sa.text("status = 'active'"),
            sqlite_where=sa.text("status = 'active'"),
        )
        batch_op.drop_index("ix_services_agent_id")

    op.drop_table("services")
    op.drop_table("service_totals")
    with op.batch_alter_table("service_minutes", schema=None) as batch_op:
        batch_op.drop_index("ix_service_minutes_minute")

    op.drop_table("service_minutes")
    with op.batch_alter_table("service_latencies", schema=None) as batch_op:
        batch_op.drop_index("ix_service_latencies_hour")

    op.drop_table("service_latencies")
    with op.batch_alter_table("service_callers", schema=None) as batch_op:
        batch_op.drop_index("ix_service_callers_ranking")

    op.drop_table("service_callers")
