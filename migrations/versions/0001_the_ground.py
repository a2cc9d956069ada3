"""the ground

Revision: 0001; after:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "agents",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_email", sa.String(length=254), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_agents_created_at"), ["created_at"], unique=False)

    op.create_table(
        "credit_accounts",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("available_nanos", sa.BigInteger(), nullable=False),
        sa.Column("held_nanos", sa.BigInteger(), nullable=False),
        sa.Column("granted_nanos", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "available_nanos + held_nanos = granted_nanos - spent_nanos", name="ck_credit_accounts_balance"
        ),
        sa.CheckConstraint(
            "available_nanos >= 0 AND held_nanos >= 0", name="ck_credit_accounts_not_negative"
        ),
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
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("mark", sa.JSON(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("wallet_id", "chain"),
    )
    op.create_table(
        "funding_allocations",
        sa.Column("deposit_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("transaction_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("deposit_id", "transaction_id"),
    )
    with op.batch_alter_table("funding_allocations", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_funding_allocations_transaction_id"), ["transaction_id"], unique=False
        )

    op.create_table(
        "funding_deposits",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("currency", sa.String(length=10), nullable=False),
        sa.Column("units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=False),
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
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("chain", "wallet_id", "position", name="uq_funding_deposits_position"),
    )
    with op.batch_alter_table("funding_deposits", schema=None) as batch_op:
        batch_op.create_index("ix_funding_deposits_open", ["chain", "final"], unique=False)

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
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("misses", sa.Integer(), nullable=False),
        sa.Column("locked_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("scope"),
    )
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("owner_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("method", sa.String(length=8), nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hmac", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("subject_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("answer_status", sa.Integer(), nullable=True),
        sa.Column("answer_sealed", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index("ix_idempotency_keys_created_at", ["created_at"], unique=False)
        batch_op.create_index("uq_idempotency_keys_scope", ["owner_id", "method", "path", "key"], unique=True)

    op.create_table(
        "key_store",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("network", sa.String(length=20), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "master_keys",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("owner_email", sa.String(length=254), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
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
        "retired_keys",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("evm_address", sa.String(length=42), nullable=False),
        sa.Column("solana_address", sa.String(length=44), nullable=False),
        sa.Column("sealed", sa.String(length=200), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("purge_after", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    with op.batch_alter_table("retired_keys", schema=None) as batch_op:
        batch_op.create_index("ix_retired_keys_purge_after", ["purge_after"], unique=False)

    op.create_table(
        "signed_attempts",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("transaction_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("tx_hash", sa.String(length=100), nullable=False),
        sa.Column("purpose", sa.String(length=12), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("refusal", sa.String(length=40), nullable=True),
        sa.Column("seen_at_block", sa.BigInteger(), nullable=True),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("chain", "tx_hash", name="uq_signed_attempts_hash"),
    )
    with op.batch_alter_table("signed_attempts", schema=None) as batch_op:
        batch_op.create_index("ix_signed_attempts_transaction_id", ["transaction_id"], unique=False)

    op.create_table(
        "spending_accounts",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("frozen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lock_version", sa.BigInteger(), nullable=False),
        sa.Column("counted_on", sa.Date(), nullable=False),
        sa.Column("day_nanos", sa.BigInteger(), nullable=False),
        sa.Column("week_nanos", sa.BigInteger(), nullable=False),
        sa.Column("month_nanos", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "day_nanos >= 0 AND week_nanos >= 0 AND month_nanos >= 0", name="ck_spending_accounts_sums"
        ),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    with op.batch_alter_table("spending_accounts", schema=None) as batch_op:
        batch_op.create_index("ix_spending_accounts_agent_id", ["agent_id"], unique=False)

    op.create_table(
        "spending_controls",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("daily_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("weekly_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("monthly_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("per_tx_limit_nanos", sa.BigInteger(), nullable=False),
        sa.Column("allowed_addresses", sa.JSON(), nullable=False),
        sa.Column("allowed_domains", sa.JSON(), nullable=False),
        sa.Column("locked", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "daily_limit_nanos >= 0 AND weekly_limit_nanos >= 0 AND monthly_limit_nanos >= 0 AND per_tx_limit_nanos >= 0",
            name="ck_spending_controls_limits",
        ),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    op.create_table(
        "spending_holds",
        sa.Column("reference", sa.String(length=64), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("made_on", sa.Date(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('held', 'spent', 'released')", name="ck_spending_holds_state"),
        sa.CheckConstraint("amount_nanos >= 0", name="ck_spending_holds_amount"),
        sa.PrimaryKeyConstraint("reference"),
    )
    with op.batch_alter_table("spending_holds", schema=None) as batch_op:
        batch_op.create_index("ix_spending_holds_wallet_id_made_on", ["wallet_id", "made_on"], unique=False)

    op.create_table(
        "transaction_events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("transaction_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("transaction_events", schema=None) as batch_op:
        batch_op.create_index("ix_transaction_events_transaction_id", ["transaction_id"], unique=False)

    op.create_table(
        "transactions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("type", sa.String(length=20), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=True),
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("from_address", sa.String(length=64), nullable=True),
        sa.Column("to_address", sa.String(length=64), nullable=False),
        sa.Column("amount_units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=False),
        sa.Column("currency", sa.String(length=10), nullable=False),
        sa.Column("tx_hash", sa.String(length=100), nullable=True),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("error", sa.String(length=200), nullable=True),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("confirmed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("nonce", sa.BigInteger(), nullable=True),
        sa.Column("expires_at_height", sa.BigInteger(), nullable=True),
        sa.Column("fee_cap_units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=True),
        sa.Column("fee_units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=True),
        sa.Column("native_out_units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=True),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.String(length=100), nullable=True),
        sa.Column("opened_block", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_check_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checks", sa.Integer(), nullable=False),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_transactions_cost"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("chain", "from_address", "nonce", name="uq_transactions_slot"),
    )
    with op.batch_alter_table("transactions", schema=None) as batch_op:
        batch_op.create_index(
            "ix_transactions_due",
            ["chain", "next_check_at"],
            unique=False,
            postgresql_where=sa.text("next_check_at IS NOT NULL"),
        )
        batch_op.create_index("ix_transactions_history", ["wallet_id", "created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_transactions_open_funding",
            ["chain", "wallet_id"],
            unique=False,
            postgresql_where=sa.text("type = 'funding' AND status = 'pending'"),
            sqlite_where=sa.text("type = 'funding' AND status = 'pending'"),
        )

    op.create_table(
        "usage_by_provider",
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("provider", sa.String(length=100), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "provider"),
    )
    op.create_table(
        "usage_logs",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("api_key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("provider", sa.String(length=100), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("price_version", sa.String(length=60), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_usage_logs_cost"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("usage_logs", schema=None) as batch_op:
        batch_op.create_index(
            "ix_usage_logs_history",
            ["account_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
            unique=False,
        )

    op.create_table(
        "wallet_keys",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("sealed", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("wallet_id"),
    )
    op.create_table(
        "wallets",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("evm_address", sa.String(length=42), nullable=False),
        sa.Column("solana_address", sa.String(length=44), nullable=False),
        sa.Column("transaction_count", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("evm_address"),
        sa.UniqueConstraint("solana_address"),
    )
    with op.batch_alter_table("wallets", schema=None) as batch_op:
        batch_op.create_index(
            "ix_wallets_agent_id_created_at", ["agent_id", "created_at", "id"], unique=False
        )

    op.create_table(
        "work_leases",
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("holder", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("kind", sa.String(length=2), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(kind = 'ak') = (agent_id IS NOT NULL) AND kind IN ('ak', 'gw')", name="api_keys_kind"
        ),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_keys_agent_id"), ["agent_id"], unique=False)

    op.create_table(
        "claim_codes",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("code_hmac", sa.String(length=64), nullable=False),
        sa.Column("pepper_id", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claim_email", sa.String(length=254), nullable=True),
        sa.Column("answer_sealed", sa.Text(), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("code_hmac"),
    )
    with op.batch_alter_table("claim_codes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_claim_codes_agent_id"), ["agent_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_claim_codes_claimed_at"), ["claimed_at"], unique=False)

    op.create_table(
        "credit_holds",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("settled_nanos", sa.BigInteger(), nullable=False),
        sa.Column("unpaid_nanos", sa.BigInteger(), nullable=False),
        sa.Column("memo", sa.JSON(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('held', 'lapsed', 'settled', 'released')", name="ck_credit_holds_state"
        ),
        sa.CheckConstraint("amount_nanos >= 0 AND settled_nanos >= 0", name="ck_credit_holds_amounts"),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["credit_accounts.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("credit_holds", schema=None) as batch_op:
        batch_op.create_index(
            "ix_credit_holds_open",
            ["lease_until"],
            unique=False,
            postgresql_where=sa.text("state = 'held'"),
            sqlite_where=sa.text("state = 'held'"),
        )

    op.create_table(
        "credit_postings",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("reference", sa.String(length=120), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("debit", sa.String(length=10), nullable=False),
        sa.Column("credit", sa.String(length=10), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "debit IN ('issuance', 'available', 'held', 'revenue') AND credit IN ('issuance', 'available', 'held', 'revenue') AND debit <> credit",
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
    with op.batch_alter_table("credit_postings", schema=None) as batch_op:
        batch_op.create_index("ix_credit_postings_account_id", ["account_id"], unique=False)

    op.create_table(
        "owner_keys",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("owner_email", sa.String(length=254), nullable=True),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    with op.batch_alter_table("owner_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_owner_keys_agent_id"), ["agent_id"], unique=False)


def downgrade() -> None:
    """Go back."""
    with op.batch_alter_table("owner_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_owner_keys_agent_id"))

    op.drop_table("owner_keys")
    with op.batch_alter_table("credit_postings", schema=None) as batch_op:
        batch_op.drop_index("ix_credit_postings_account_id")

    op.drop_table("credit_postings")
    with op.batch_alter_table("credit_holds", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_credit_holds_open",
            postgresql_where=sa.text("state = 'held'"),
            sqlite_where=sa.text("state = 'held'"),
        )

    op.drop_table("credit_holds")
    with op.batch_alter_table("claim_codes", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_claim_codes_claimed_at"))
        batch_op.drop_index(batch_op.f("ix_claim_codes_agent_id"))

    op.drop_table("claim_codes")
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_api_keys_agent_id"))

    op.drop_table("api_keys")
    op.drop_table("work_leases")
    with op.batch_alter_table("wallets", schema=None) as batch_op:
        batch_op.drop_index("ix_wallets_agent_id_created_at")

    op.drop_table("wallets")
    op.drop_table("wallet_keys")
    with op.batch_alter_table("usage_logs", schema=None) as batch_op:
        batch_op.drop_index("ix_usage_logs_history")

    op.drop_table("usage_logs")
    op.drop_table("usage_by_provider")
    with op.batch_alter_table("transactions", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_transactions_open_funding",
            postgresql_where=sa.text("type = 'funding' AND status = 'pending'"),
            sqlite_where=sa.text("type = 'funding' AND status = 'pending'"),
        )
        batch_op.drop_index("ix_transactions_history")
        batch_op.drop_index("ix_transactions_due", postgresql_where=sa.text("next_check_at IS NOT NULL"))

    op.drop_table("transactions")
    with op.batch_alter_table("transaction_events", schema=None) as batch_op:
        batch_op.drop_index("ix_transaction_events_transaction_id")

    op.drop_table("transaction_events")
    with op.batch_alter_table("spending_holds", schema=None) as batch_op:
        batch_op.drop_index("ix_spending_holds_wallet_id_made_on")

    op.drop_table("spending_holds")
    op.drop_table("spending_controls")
    with op.batch_alter_table("spending_accounts", schema=None) as batch_op:
        batch_op.drop_index("ix_spending_accounts_agent_id")

    op.drop_table("spending_accounts")
    with op.batch_alter_table("signed_attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_signed_attempts_transaction_id")

    op.drop_table("signed_attempts")
    with op.batch_alter_table("retired_keys", schema=None) as batch_op:
        batch_op.drop_index("ix_retired_keys_purge_after")

    op.drop_table("retired_keys")
    op.drop_table("nonces")
    op.drop_table("master_keys")
    op.drop_table("key_store")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index("uq_idempotency_keys_scope")
        batch_op.drop_index("ix_idempotency_keys_created_at")

    op.drop_table("idempotency_keys")
    op.drop_table("heartbeats")
    op.drop_table("guess_counters")
    op.drop_table("grant_budgets")
    with op.batch_alter_table("funding_deposits", schema=None) as batch_op:
        batch_op.drop_index("ix_funding_deposits_open")

    op.drop_table("funding_deposits")
    with op.batch_alter_table("funding_allocations", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_funding_allocations_transaction_id"))

    op.drop_table("funding_allocations")
    op.drop_table("deposit_marks")
    op.drop_table("deposit_cursors")
    op.drop_table("credit_accounts")
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_agents_created_at"))

    op.drop_table("agents")
