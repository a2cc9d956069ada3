"""The schema that release 1.0 starts from.

Revision: 0028. A database at revision 0028 of the development versions has this schema.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.Uuid(as_uuid=False)
TIME = sa.DateTime(timezone=True)
UNITS = sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite")
# In the order in which they can be dropped.
_TABLES = (
    "owner_session_keys", "owner_passkeys", "topups", "subscriptions", "service_texts", "service_specifications",
    "owner_keys", "credit_postings", "credit_holds", "claim_codes", "api_keys", "work_leases", "wallets",
    "wallet_keys", "used_passkey_challenges", "usage_logs", "usage_by_provider", "transactions", "transaction_events",
    "sponsored_days", "spending_sessions", "spending_holds", "spending_controls", "spending_accounts",
    "signed_attempts", "services", "service_totals", "service_purchases", "service_minutes", "service_latencies",
    "service_callers", "retired_keys", "purchases", "purchase_steps", "purchase_evidence", "purchase_events",
    "pinned_payees", "payments", "payment_wallets", "payment_supplies", "payment_horizons", "payment_claims",
    "owner_sessions", "nonces", "master_keys", "key_store", "idempotency_keys", "heartbeats", "guess_counters",
    "grant_budgets", "funding_deposits", "funding_allocations", "exchange_markets", "exchange_budgets", "events",
    "event_targets", "event_sequence", "event_deliveries", "deposit_marks", "deposit_cursors", "credit_accounts",
    "bridges", "audit_heads", "audit_entries", "approved_payees", "approvals", "agents",
)  # fmt: skip
# On SQLite, triggers copy each change of the table to a virtual table. A later migration that makes `service_texts`
# again, as batch operations do, must make the triggers again.
_SQLITE_INDEX = """
CREATE VIRTUAL TABLE search_trigrams USING fts5
    (text, content='service_texts', content_rowid='number', tokenize='trigram case_sensitive 1')

CREATE TRIGGER search_trigrams_insert AFTER INSERT ON service_texts BEGIN
    INSERT INTO search_trigrams (rowid, text) VALUES (new.number, new.text); END;

CREATE TRIGGER search_trigrams_delete AFTER DELETE ON service_texts BEGIN
    INSERT INTO search_trigrams (search_trigrams, rowid, text) VALUES ('delete', old.number, old.text); END;

CREATE TRIGGER search_trigrams_update AFTER UPDATE OF text ON service_texts BEGIN
    INSERT INTO search_trigrams (search_trigrams, rowid, text) VALUES ('delete', old.number, old.text);
    INSERT INTO search_trigrams (rowid, text) VALUES (new.number, new.text); END;
"""
# Any role that may create objects may create this extension; on a server without it, a search reads every text.
# Services change seldom and are searched often, so no list of pending changes is kept.
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
    for statement in _SQLITE_INDEX.split("\n\n"):
        op.execute(statement)


def _drop_search_index() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP INDEX IF EXISTS search_trigrams")
        return
    for name in ("insert", "delete", "update"):
        op.execute(f"DROP TRIGGER search_trigrams_{name}")
    op.execute("DROP TABLE search_trigrams")


def _where(condition: str) -> dict[str, sa.TextClause]:
    return {"postgresql_where": sa.text(condition), "sqlite_where": sa.text(condition)}


def upgrade() -> None:  # noqa: PLR0915 - one statement for each table and index
    """Create everything."""
    op.create_table(
        "agents",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=True),
        sa.Column("claimed_at", TIME, nullable=True),
        sa.Column("claimed_email", sa.String(length=254), nullable=True),
        sa.Column("frozen_at", TIME, nullable=True),
        sa.Column("deleted_at", TIME, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_agents_listing", "agents", ["created_at", "id"], **_where("deleted_at IS NULL"))
    op.create_table(
        "approvals",
        sa.Column("id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("value_nanos", sa.BigInteger(), nullable=False),
        sa.Column("recipient", sa.String(length=64), nullable=True),
        sa.Column("domain", sa.String(length=253), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.String(length=40), nullable=True),
        sa.Column("subject_id", ID, nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("holder", ID, nullable=True),
        sa.Column("lease_until", TIME, nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("decided_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.CheckConstraint(
            "status IN ('awaiting', 'approved', 'executed', 'rejected', 'expired', 'cancelled', 'failed')",
            name="ck_approvals_status",
        ),
        sa.CheckConstraint("value_nanos >= 0", name="ck_approvals_value"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_approvals_agent_id", "approvals", ["agent_id", "created_at", "id"])
    op.create_index("ix_approvals_created_at", "approvals", ["created_at", "id"])
    op.create_index(
        "ix_approvals_open", "approvals", ["wallet_id", "expires_at"], **_where("status IN ('awaiting', 'approved')")
    )
    op.create_table(
        "approved_payees",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("payee", sa.String(length=253), nullable=False),
        sa.Column("week_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("week_nanos >= 0", name="ck_approved_payees_week"),
        sa.PrimaryKeyConstraint("wallet_id", "payee"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor_kind", sa.String(length=20), nullable=False),
        sa.Column("actor_id", ID, nullable=True),
        sa.Column("actor_name", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("subject_kind", sa.String(length=20), nullable=False),
        sa.Column("subject_id", ID, nullable=True),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.Column("client_address", sa.String(length=60), nullable=True),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("ix_audit_entries_action", "audit_entries", ["action", "number"])
    op.create_index("ix_audit_entries_subject_id", "audit_entries", ["subject_id", "number"])
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
        "bridges",
        sa.Column("id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("adapter", sa.String(length=20), nullable=False),
        sa.Column("route", sa.String(length=60), nullable=False),
        sa.Column("destination_chain", sa.String(length=20), nullable=False),
        sa.Column("stage", sa.String(length=12), nullable=False),
        sa.Column("fee_units", UNITS, nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("proof", sa.JSON(), nullable=False),
        sa.Column("attested_at", TIME, nullable=True),
        sa.Column("received_units", UNITS, nullable=True),
        sa.Column("arrival_hash", sa.String(length=100), nullable=True),
        sa.Column("arrival_block", sa.BigInteger(), nullable=True),
        sa.Column("arrival_block_hash", sa.String(length=100), nullable=True),
        sa.Column("arrival_takes_slot", sa.Boolean(), nullable=False),
        sa.Column("may_return", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("refund_hash", sa.String(length=100), nullable=True),
        sa.Column("refund_block", sa.BigInteger(), nullable=True),
        sa.Column("refund_block_hash", sa.String(length=100), nullable=True),
        sa.Column("refund_units", UNITS, nullable=True),
        sa.Column("next_step_at", TIME, nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_bridges_due", "bridges", ["next_step_at"])
    op.create_index("ix_bridges_wallet_id", "bridges", ["wallet_id"])
    op.create_table(
        "credit_accounts",
        sa.Column("id", ID, nullable=False),
        sa.Column("available_nanos", sa.BigInteger(), nullable=False),
        sa.Column("held_nanos", sa.BigInteger(), nullable=False),
        sa.Column("granted_nanos", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), nullable=False),
        sa.Column("carried_nanos", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint(
            "available_nanos + held_nanos = granted_nanos - spent_nanos", name="ck_credit_accounts_balance"
        ),
        sa.CheckConstraint("available_nanos >= 0 AND held_nanos >= 0", name="ck_credit_accounts_not_negative"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "deposit_cursors",
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.String(length=100), nullable=True),
        sa.PrimaryKeyConstraint("chain"),
    )
    op.create_table(
        "deposit_marks",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("mark", sa.JSON(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("wallet_id", "chain"),
    )
    op.create_table(
        "event_deliveries",
        sa.Column("id", ID, nullable=False),
        sa.Column("target_id", ID, nullable=False),
        sa.Column("event_id", ID, nullable=False),
        sa.Column("object_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("delivered_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("target_id", "event_id", name="uq_event_deliveries_event"),
    )
    op.create_index("ix_event_deliveries_created_at", "event_deliveries", ["created_at"])
    op.create_index(
        "ix_event_deliveries_due", "event_deliveries", ["target_id", "next_attempt_at"], **_where("status = 'pending'")
    )
    op.create_index("ix_event_deliveries_event_id", "event_deliveries", ["event_id"])
    op.create_index("ix_event_deliveries_listing", "event_deliveries", ["target_id", "position"])
    op.create_index(
        "ix_event_deliveries_order",
        "event_deliveries",
        ["target_id", "object_id", "position"],
        **_where("status = 'pending'"),
    )
    op.create_table(
        "event_sequence",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "event_targets",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("audience", sa.String(length=10), nullable=False),
        sa.Column("agent_id", ID, nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.String(length=100), nullable=False),
        sa.Column("types", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("status_reason", sa.String(length=100), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("former_sealed", sa.Text(), nullable=True),
        sa.Column("former_until", TIME, nullable=True),
        sa.Column("holder", ID, nullable=True),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("due_at", TIME, nullable=True),
        sa.Column("paused_until", TIME, nullable=False),
        sa.Column("failing_since", TIME, nullable=True),
        sa.Column("unanswered", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("(audience = 'operator') = (agent_id IS NULL)", name="ck_event_targets_audience"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_event_targets_agent_id", "event_targets", ["agent_id"])
    op.create_index("ix_event_targets_created_at", "event_targets", ["created_at", "id"])
    op.create_index("ix_event_targets_due_at", "event_targets", ["due_at"])
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("agent_id", ID, nullable=True),
        sa.Column("object_id", sa.String(length=64), nullable=False),
        sa.Column("dedupe", sa.String(length=100), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("object_id", "dedupe", name="uq_events_dedupe"),
        sa.UniqueConstraint("position"),
    )
    op.create_index("ix_events_agent_id_position", "events", ["agent_id", "position"])
    op.create_index("ix_events_created_at", "events", ["created_at"])
    op.create_index("ix_events_new", "events", ["number"], **_where("position IS NULL"))
    op.create_table(
        "exchange_budgets",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("whole_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("ix_exchange_budgets_whole_at_ms", "exchange_budgets", ["whole_at_ms"])
    op.create_table(
        "exchange_markets",
        sa.Column("exchange", sa.String(length=20), nullable=False),
        sa.Column("markets", sa.JSON(), nullable=False),
        sa.Column("read_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("exchange"),
    )
    op.create_table(
        "funding_allocations",
        sa.Column("deposit_id", ID, nullable=False),
        sa.Column("transaction_id", ID, nullable=False),
        sa.Column("units", UNITS, nullable=False),
        sa.PrimaryKeyConstraint("deposit_id", "transaction_id"),
    )
    op.create_index(op.f("ix_funding_allocations_transaction_id"), "funding_allocations", ["transaction_id"])
    op.create_table(
        "funding_deposits",
        sa.Column("id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("currency", sa.String(length=10), nullable=False),
        sa.Column("units", UNITS, nullable=False),
        sa.Column("tx_hash", sa.String(length=100), nullable=True),
        sa.Column("payer", sa.String(length=64), nullable=True),
        sa.Column("position", sa.String(length=160), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("block_hash", sa.String(length=100), nullable=False),
        sa.Column("mark_before", sa.JSON(), nullable=False),
        sa.Column("mark_block", sa.BigInteger(), nullable=False),
        sa.Column("mark_revision", sa.BigInteger(), nullable=False),
        sa.Column("by_mark", sa.Boolean(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("found_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("chain", "wallet_id", "position", name="uq_funding_deposits_position"),
    )
    op.create_index("ix_funding_deposits_open", "funding_deposits", ["chain", "final"])
    op.create_table(
        "grant_budgets",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("granted_nanos", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("granted_nanos >= 0", name="ck_grant_budgets_granted"),
        sa.PrimaryKeyConstraint("day"),
    )
    op.create_table(
        "guess_counters",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("window_start", TIME, nullable=False),
        sa.Column("misses", sa.Integer(), nullable=False),
        sa.Column("locked_until", TIME, nullable=True),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("scope"),
    )
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("owner_id", ID, nullable=False),
        sa.Column("method", sa.String(length=8), nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hmac", sa.String(length=64), nullable=False),
        sa.Column("holder", ID, nullable=False),
        sa.Column("subject_id", ID, nullable=True),
        sa.Column("answer_status", sa.Integer(), nullable=True),
        sa.Column("answer_sealed", sa.Text(), nullable=True),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_index("uq_idempotency_keys_scope", "idempotency_keys", ["owner_id", "method", "path", "key"], unique=True)
    op.create_table(
        "key_store",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("network", sa.String(length=20), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "master_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("owner_email", sa.String(length=254), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "nonces",
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("next_nonce", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("chain", "address"),
    )
    op.create_table(
        "owner_sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index(op.f("ix_owner_sessions_expires_at"), "owner_sessions", ["expires_at"])
    op.create_table(
        "payment_claims",
        sa.Column("key", sa.String(length=160), nullable=False),
        sa.Column("holder_id", ID, nullable=False),
        sa.Column("claimed_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_payment_claims_holder_id", "payment_claims", ["holder_id"])
    op.create_table(
        "payment_horizons",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("drawn_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "payment_supplies",
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("submissions_left", sa.BigInteger(), nullable=False),
        sa.Column("looked_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("chain"),
    )
    op.create_table(
        "payment_wallets",
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.PrimaryKeyConstraint("role"),
    )
    op.create_table(
        "payments",
        sa.Column("id", ID, nullable=False),
        sa.Column("rail", sa.String(length=10), nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("payer", sa.String(length=64), nullable=True),
        sa.Column("units", UNITS, nullable=False),
        sa.Column("required_units", UNITS, nullable=False),
        sa.Column("provider", sa.String(length=100), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("signed", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("tx_hash", sa.String(length=100), nullable=True),
        sa.Column("transaction_id", ID, nullable=True),
        sa.Column("recipient", sa.String(length=64), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("paid_at", TIME, nullable=True),
        sa.Column("served_at", TIME, nullable=True),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.CheckConstraint("tries >= 0", name="ck_payments_tries"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_payments_open", "payments", ["status", "created_at"])
    op.create_table(
        "pinned_payees",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("host", sa.String(length=253), nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("wallet_id", "host", "chain"),
    )
    op.create_table(
        "purchase_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("purchase_id", ID, nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_purchase_events_purchase_id", "purchase_events", ["purchase_id"])
    op.create_table(
        "purchase_evidence",
        sa.Column("id", ID, nullable=False),
        sa.Column("purchase_id", ID, nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("media_type", sa.String(length=40), server_default="image/png", nullable=False),
        sa.Column("png", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_purchase_evidence_created_at", "purchase_evidence", ["created_at"])
    op.create_index("ix_purchase_evidence_purchase_id", "purchase_evidence", ["purchase_id"])
    op.create_table(
        "purchase_steps",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("purchase_id", ID, nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("text", sa.String(length=200), nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_purchase_steps_purchase_id", "purchase_steps", ["purchase_id"])
    op.create_table(
        "purchases",
        sa.Column("id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("max_total_nanos", sa.BigInteger(), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("order_digest", sa.String(length=64), nullable=False),
        sa.Column("shop_account_digest", sa.String(length=64), nullable=False),
        sa.Column("first_page", sa.Boolean(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("product", sa.JSON(), nullable=True),
        sa.Column("total_nanos", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("holder", ID, nullable=True),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.Column("approval_id", ID, nullable=True),
        sa.Column("approved_nanos", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("quantity > 0", name="ck_purchases_quantity"),
        sa.CheckConstraint("total_nanos >= 0", name="ck_purchases_total"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_purchases_account_id_order_digest", "purchases", ["account_id", "order_digest"])
    op.create_index("ix_purchases_status_lease_until", "purchases", ["status", "lease_until"])
    op.create_index("ix_purchases_wallet_id_status", "purchases", ["wallet_id", "status"])
    op.create_index(
        "uq_purchases_shop_account_at_work",
        "purchases",
        ["shop_account_digest"],
        unique=True,
        **_where("status IN ('running', 'submitting')"),
    )
    op.create_table(
        "retired_keys",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("evm_address", sa.String(length=42), nullable=False),
        sa.Column("solana_address", sa.String(length=44), nullable=False),
        sa.Column("sealed", sa.String(length=200), nullable=False),
        sa.Column("retired_at", TIME, nullable=False),
        sa.Column("purge_after", TIME, nullable=False),
        sa.Column("empty_since", TIME, nullable=True),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    op.create_index("ix_retired_keys_purge_after", "retired_keys", ["purge_after"])
    op.create_table(
        "service_callers",
        sa.Column("service_id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "wallet_id"),
    )
    op.create_index(
        "ix_service_callers_ranking",
        "service_callers",
        ["service_id", sa.literal_column("calls DESC"), sa.literal_column("spent_nanos DESC"), "wallet_id"],
    )
    op.create_table(
        "service_latencies",
        sa.Column("service_id", ID, nullable=False),
        sa.Column("hour", TIME, nullable=False),
        sa.Column("bar", sa.Integer(), nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "hour", "bar", "stripe"),
    )
    op.create_index("ix_service_latencies_hour", "service_latencies", ["hour"])
    op.create_table(
        "service_minutes",
        sa.Column("service_id", ID, nullable=False),
        sa.Column("minute", TIME, nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("revenue_nanos", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "minute", "stripe"),
    )
    op.create_index("ix_service_minutes_minute", "service_minutes", ["minute"])
    op.create_table(
        "service_purchases",
        sa.Column("id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("host", sa.String(length=253), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("method", sa.String(length=10), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("network", sa.String(length=100), nullable=False),
        sa.Column("answer_sealed", sa.Text(), nullable=True),
        sa.Column("answered_at", TIME, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_service_purchases_answered", "service_purchases", ["answered_at"], **_where("answer_sealed IS NOT NULL")
    )
    op.create_index("ix_service_purchases_wallet_id", "service_purchases", ["wallet_id", "created_at"])
    op.create_table(
        "service_totals",
        sa.Column("service_id", ID, nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("revenue_nanos", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service_id", "stripe"),
    )
    op.create_table(
        "services",
        sa.Column("id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
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
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint("status IN ('active', 'paused', 'retired')", name="ck_services_status"),
        sa.CheckConstraint("price_nanos >= 0 AND price_nanos <= 100000000000", name="ck_services_price"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_services_agent_id", "services", ["agent_id", "created_at", "id"])
    op.create_index(
        "ix_services_ranking",
        "services",
        [sa.literal_column("total_calls DESC"), "name", "id"],
        **_where("status = 'active'"),
    )
    op.create_table(
        "signed_attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("transaction_id", ID, nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("tx_hash", sa.String(length=100), nullable=False),
        sa.Column("purpose", sa.String(length=12), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("refusal", sa.String(length=40), nullable=True),
        sa.Column("seen_at_block", sa.BigInteger(), nullable=True),
        sa.Column("sent_at", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("chain", "tx_hash", name="uq_signed_attempts_hash"),
    )
    op.create_index("ix_signed_attempts_transaction_id", "signed_attempts", ["transaction_id"])
    op.create_table(
        "spending_accounts",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("frozen_at", TIME, nullable=True),
        sa.Column("lock_version", sa.BigInteger(), nullable=False),
        sa.Column("counted_on", sa.Date(), nullable=False),
        sa.Column("day_nanos", sa.BigInteger(), nullable=False),
        sa.Column("week_nanos", sa.BigInteger(), nullable=False),
        sa.Column("month_nanos", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("day_nanos >= 0 AND week_nanos >= 0 AND month_nanos >= 0", name="ck_spending_accounts_sums"),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    op.create_index("ix_spending_accounts_agent_id", "spending_accounts", ["agent_id"])
    op.create_table(
        "spending_controls",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("daily_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("weekly_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("monthly_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("per_tx_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("allowed_addresses", sa.JSON(), nullable=False),
        sa.Column("allowed_domains", sa.JSON(), nullable=False),
        sa.Column("locked", sa.Boolean(), nullable=False),
        sa.Column("approval_threshold_nanos", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("approve_new_recipients", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("approve_new_domains", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint(
            "daily_limit_nanos >= 0 AND weekly_limit_nanos >= 0 AND monthly_limit_nanos >= 0"
            " AND per_tx_limit_nanos >= 0",
            name="ck_spending_controls_limits",
        ),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    op.create_table(
        "spending_holds",
        sa.Column("reference", sa.String(length=64), nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("made_on", sa.Date(), nullable=False),
        sa.Column("session_id", ID, nullable=True),
        sa.Column("permitted_payee", sa.String(length=253), nullable=True),
        sa.Column("paid_by_credits", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("state IN ('held', 'spent', 'released')", name="ck_spending_holds_state"),
        sa.CheckConstraint("amount_nanos >= 0", name="ck_spending_holds_amount"),
        sa.PrimaryKeyConstraint("reference"),
    )
    op.create_index("ix_spending_holds_ended", "spending_holds", ["made_on"], **_where("state <> 'held'"))
    op.create_index("ix_spending_holds_wallet_id_made_on", "spending_holds", ["wallet_id", "made_on"])
    op.create_table(
        "spending_sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("max_nanos", sa.BigInteger(), nullable=False),
        sa.Column("counted_nanos", sa.BigInteger(), nullable=False),
        sa.Column("domains", sa.JSON(), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("max_nanos >= 0 AND counted_nanos >= 0", name="ck_spending_sessions_sums"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_spending_sessions_expires_at", "spending_sessions", ["expires_at"])
    op.create_index("ix_spending_sessions_wallet_id", "spending_sessions", ["wallet_id", "created_at"])
    op.create_table(
        "sponsored_days",
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("transfers", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "day"),
    )
    op.create_table(
        "transaction_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("transaction_id", ID, nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=True),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_transaction_events_at", "transaction_events", ["at"])
    op.create_index("ix_transaction_events_transaction_id", "transaction_events", ["transaction_id"])
    op.create_table(
        "transactions",
        sa.Column("id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("type", sa.String(length=20), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=True),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("from_address", sa.String(length=64), nullable=True),
        sa.Column("to_address", sa.String(length=64), nullable=False),
        sa.Column("amount_units", UNITS, nullable=False),
        sa.Column("currency", sa.String(length=10), nullable=False),
        sa.Column("tx_hash", sa.String(length=100), nullable=True),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("error", sa.String(length=200), nullable=True),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("confirmed_at", TIME, nullable=True),
        sa.Column("output_currency", sa.String(length=10), nullable=True),
        sa.Column("output_quoted_units", UNITS, nullable=True),
        sa.Column("output_minimum_units", UNITS, nullable=True),
        sa.Column("output_units", UNITS, nullable=True),
        sa.Column("gas_fee_units", UNITS, nullable=True),
        sa.Column("nonce", sa.BigInteger(), nullable=True),
        sa.Column("expires_at_height", sa.BigInteger(), nullable=True),
        sa.Column("fee_cap_units", UNITS, nullable=True),
        sa.Column("fee_units", UNITS, nullable=True),
        sa.Column("native_out_units", UNITS, nullable=True),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.String(length=100), nullable=True),
        sa.Column("opened_block", sa.BigInteger(), nullable=True),
        sa.Column("bridge_id", ID, nullable=True),
        sa.Column("leg", sa.String(length=12), nullable=True),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("next_check_at", TIME, nullable=True),
        sa.Column("quarantined_at", TIME, nullable=True),
        sa.Column("checks", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=True),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_transactions_cost"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("chain", "from_address", "nonce", name="uq_transactions_slot"),
    )
    op.create_index("ix_transactions_bridge", "transactions", ["bridge_id"], **_where("bridge_id IS NOT NULL"))
    op.create_index(
        "ix_transactions_due",
        "transactions",
        ["chain", "next_check_at"],
        postgresql_where=sa.text("next_check_at IS NOT NULL"),
    )
    op.create_index("ix_transactions_history", "transactions", ["wallet_id", "created_at", "id"])
    op.create_index(
        "ix_transactions_in_flight",
        "transactions",
        ["chain", "from_address", "block_number"],
        **_where("nonce IS NULL AND fee_cap_units IS NOT NULL"),
    )
    op.create_index(
        "ix_transactions_open_funding",
        "transactions",
        ["chain", "wallet_id"],
        **_where("type = 'funding' AND status = 'pending'"),
    )
    op.create_index("ix_transactions_queries", "transactions", ["created_at"], **_where("type = 'trading_query'"))
    op.create_table(
        "usage_by_provider",
        sa.Column("account_id", ID, nullable=False),
        sa.Column("provider", sa.String(length=100), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("carried_calls", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("carried_cost_nanos", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("carried_tokens_in", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("carried_tokens_out", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "provider"),
    )
    op.create_table(
        "usage_logs",
        sa.Column("id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("api_key_id", ID, nullable=False),
        sa.Column("provider", sa.String(length=100), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("price_version", sa.String(length=60), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_usage_logs_cost"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_usage_logs_history",
        "usage_logs",
        ["account_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
    )
    op.create_table(
        "used_passkey_challenges",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_used_passkey_challenges_expires_at"), "used_passkey_challenges", ["expires_at"])
    op.create_table(
        "wallet_keys",
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("sealed", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    op.create_table(
        "wallets",
        sa.Column("id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("evm_address", sa.String(length=42), nullable=False),
        sa.Column("solana_address", sa.String(length=44), nullable=False),
        sa.Column("transaction_count", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("evm_address"),
        sa.UniqueConstraint("solana_address"),
    )
    op.create_index("ix_wallets_agent_id_created_at", "wallets", ["agent_id", "created_at", "id"])
    op.create_table(
        "work_leases",
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("holder", ID, nullable=False),
        sa.Column("until", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(length=2), nullable=False),
        sa.Column("agent_id", ID, nullable=True),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("email", sa.String(length=254), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.CheckConstraint("(kind = 'ak') = (agent_id IS NOT NULL) AND kind IN ('ak', 'gw')", name="api_keys_kind"),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index(op.f("ix_api_keys_agent_id"), "api_keys", ["agent_id"])
    op.create_index("ix_api_keys_gateway", "api_keys", ["created_at", "id"], **_where("kind = 'gw'"))
    op.create_table(
        "claim_codes",
        sa.Column("id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("code_hmac", sa.String(length=64), nullable=False),
        sa.Column("pepper_id", sa.String(length=32), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("claimed_at", TIME, nullable=True),
        sa.Column("claim_email", sa.String(length=254), nullable=True),
        sa.Column("answer_sealed", sa.Text(), nullable=True),
        sa.Column("receipt_digest", sa.String(length=64), nullable=True),
        sa.Column("repeats", sa.Integer(), server_default="0", nullable=False),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("code_hmac"),
    )
    op.create_index(op.f("ix_claim_codes_agent_id"), "claim_codes", ["agent_id"])
    op.create_index(op.f("ix_claim_codes_claimed_at"), "claim_codes", ["claimed_at"])
    op.create_table(
        "credit_holds",
        sa.Column("id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("settled_nanos", sa.BigInteger(), nullable=False),
        sa.Column("unpaid_nanos", sa.BigInteger(), nullable=False),
        sa.Column("memo", sa.JSON(), nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("state IN ('held', 'lapsed', 'settled', 'released')", name="ck_credit_holds_state"),
        sa.CheckConstraint("amount_nanos >= 0 AND settled_nanos >= 0", name="ck_credit_holds_amounts"),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["credit_accounts.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_credit_holds_ended", "credit_holds", ["created_at"], **_where("state <> 'held'"))
    op.create_index("ix_credit_holds_open", "credit_holds", ["lease_until"], **_where("state = 'held'"))
    op.create_table(
        "credit_postings",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("reference", sa.String(length=120), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("debit", sa.String(length=10), nullable=False),
        sa.Column("credit", sa.String(length=10), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint(
            "debit IN ('issuance', 'available', 'held', 'revenue')"
            " AND credit IN ('issuance', 'available', 'held', 'revenue') AND debit <> credit",
            name="ck_credit_postings_buckets",
        ),
        sa.CheckConstraint("amount_nanos > 0", name="ck_credit_postings_amount"),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["credit_accounts.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("reference"),
    )
    op.create_index("ix_credit_postings_account_id", "credit_postings", ["account_id"])
    op.create_table(
        "owner_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("owner_email", sa.String(length=254), nullable=True),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index(op.f("ix_owner_keys_agent_id"), "owner_keys", ["agent_id"])
    op.create_table(
        "service_specifications",
        sa.Column("service_id", ID, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("endpoints", sa.JSON(), nullable=False),
        sa.Column("endpoints_count", sa.Integer(), nullable=False),
        sa.Column("example", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("service_id"),
    )
    op.create_table(
        "service_texts",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("service_id", ID, nullable=False),
        sa.Column("category", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("service_id", name="uq_service_texts_service_id"),
    )
    op.create_index("ix_service_texts_category", "service_texts", ["category"])
    op.create_table(
        "subscriptions",
        sa.Column("id", ID, nullable=False),
        sa.Column("service_id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=False),
        sa.Column("status", sa.String(length=9), nullable=False),
        sa.Column("reactivated", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint("status IN ('active', 'cancelled')", name="ck_subscriptions_status"),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("service_id", "wallet_id", name="uq_subscriptions_wallet"),
    )
    op.create_index("ix_subscriptions_agent_id", "subscriptions", ["agent_id", "created_at", "id"])
    op.create_index("ix_subscriptions_status", "subscriptions", ["service_id", "status"])
    op.create_index("ix_subscriptions_wallet_id", "subscriptions", ["wallet_id"])
    op.create_table(
        "topups",
        sa.Column("transaction_id", ID, nullable=False),
        sa.Column("wallet_id", ID, nullable=False),
        sa.Column("account_id", ID, nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("recipient", sa.String(length=64), nullable=False),
        sa.Column("units", UNITS, nullable=False),
        sa.Column("granted_nanos", UNITS, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("closed_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["credit_accounts.id"],
        ),
        sa.PrimaryKeyConstraint("transaction_id"),
    )
    op.create_index("ix_topups_open", "topups", ["chain", "closed_at"])
    op.create_index("ix_topups_wallet_id", "topups", ["wallet_id"])
    op.create_table(
        "owner_passkeys",
        sa.Column("id", ID, nullable=False),
        sa.Column("owner_key_id", ID, nullable=False),
        sa.Column("credential_digest", sa.String(length=64), nullable=False),
        sa.Column("credential_id", sa.LargeBinary(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("sign_count", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("used_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["owner_key_id"], ["owner_keys.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("credential_digest"),
    )
    op.create_index(op.f("ix_owner_passkeys_owner_key_id"), "owner_passkeys", ["owner_key_id"])
    op.create_table(
        "owner_session_keys",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("owner_key_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["owner_key_id"], ["owner_keys.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["session_id"], ["owner_sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "owner_key_id"),
    )
    op.create_index(op.f("ix_owner_session_keys_owner_key_id"), "owner_session_keys", ["owner_key_id"])
    _make_search_index()


def downgrade() -> None:
    """Drop everything."""
    _drop_search_index()
    for name in _TABLES:
        op.drop_table(name)
