"""Authenticated rows, open payments, event queues, price lists, and the names of release 1.0.

Revision: 0029; after: 0028
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op
from flask import current_app as service

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_ID = sa.Uuid(as_uuid=False)
_TIME = sa.DateTime(timezone=True)
_TABLES = (
    "agents", "api_keys", "master_keys", "owner_keys", "owner_sessions", "owner_session_keys", "owner_passkeys",
    "claim_codes", "wallets", "payment_wallets", "spending_accounts", "spending_controls", "spending_holds",
    "spending_sessions", "approved_payees", "approvals", "services", "transactions", "signed_attempts", "bridges",
)  # fmt: skip
_CHANGED = (*_TABLES, "idempotency_keys", "service_purchases", "event_targets", "payment_horizons", "payment_supplies")
_RENAMED = (
    ("payment_horizons", "payment_restore_cutoffs", "drawn_at", "set_at"),
    ("payment_supplies", "settlement_gas_reserves", "looked_at", "read_at"),
)
_PAYMENTS = sa.table("payments", sa.column("status"))
_PERMIT_DURATION = timedelta(hours=24)


def _columns() -> list[tuple[str, sa.Column[Any]]]:
    return [
        *((table, sa.Column("mac", sa.String(80), nullable=True)) for table in _TABLES),
        ("spending_accounts", sa.Column("controls_version", sa.BigInteger(), nullable=False, server_default="0")),
        ("spending_controls", sa.Column("version", sa.BigInteger(), nullable=False, server_default="1")),
        ("idempotency_keys", sa.Column("request_hmac", sa.String(64), nullable=True)),
        ("service_purchases", sa.Column("answer_status", sa.Integer(), nullable=True)),
        ("owner_passkeys", sa.Column("backup_eligible", sa.Boolean, nullable=True)),
        ("event_targets", sa.Column("queue", sa.String(80), nullable=True)),
        ("event_targets", sa.Column("created_by", _ID, nullable=True)),
        ("event_targets", sa.Column("sent", sa.JSON(), nullable=True)),
        ("transactions", sa.Column("max_fee_nanos", sa.BigInteger(), nullable=True)),
    ]


def upgrade() -> None:
    """Create the tables and columns, and permit rows without a MAC for a day if there are any.

    The hourly audit seals those rows. A new database gets no permit.
    """
    _lock((*_CHANGED, "payments"))
    for table, column in _columns():
        op.add_column(table, column)
    for old, new, old_column, new_column in _RENAMED:
        op.rename_table(old, new)
        op.alter_column(new, old_column, new_column_name=new_column)
    op.execute(_PAYMENTS.update().where(_PAYMENTS.c.status == "lost").values(status="reversed"))
    op.create_index("ix_event_targets_queue", "event_targets", ["queue"])
    _create_tables()
    if not op.get_context().as_sql:
        _notify_owners_of_loosened_limits()
        _permit_unsealed_rows()


def _lock(tables: tuple[str, ...]) -> None:
    """Lock all tables in one statement: while one lock is waited for, nobody can read the tables locked before it."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")


def _create_tables() -> None:
    op.create_table(
        "price_lists",
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind"),
    )
    op.create_table(
        "open_payments",
        sa.Column("payer", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("payment_id", _ID, nullable=False),
        sa.PrimaryKeyConstraint("payer", "fingerprint"),
    )
    op.create_table(
        "settlement_risks",
        sa.Column("payment_id", _ID, nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("payer", sa.String(64), nullable=False),
        sa.Column("claim", sa.String(160), nullable=False),
        sa.Column("risky", sa.Boolean(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_settlement_risks_cost"),
        sa.PrimaryKeyConstraint("payment_id"),
    )
    op.create_index("ix_settlement_risks_payer", "settlement_risks", ["payer", "created_at"])
    op.create_index("ix_settlement_risks_chain", "settlement_risks", ["chain", "created_at"])
    op.create_table(
        "event_queues",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("served_at", _TIME, nullable=False),
        sa.Column("first_until", _TIME, nullable=False),
        sa.Column("second_until", _TIME, nullable=False),
        sa.Column("used_until", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "unsealed_row_permits",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _notify_owners_of_loosened_limits() -> None:
    """Add the event to owners' targets: owners do not choose types, theirs are the notices of the release."""
    targets = sa.table("event_targets", sa.column("id", _ID), sa.column("audience"), sa.column("types", sa.JSON()))
    connection = op.get_bind()
    rows = connection.execute(sa.select(targets.c.id, targets.c.types).where(targets.c.audience == "owner")).all()
    for target_id, types in rows:
        if "controls.changed" not in types:
            new = [*types, "controls.changed"]
            connection.execute(targets.update().where(targets.c.id == target_id).values(types=new))


def _permit_unsealed_rows() -> None:
    found = (op.get_bind().execute(sa.text(f"SELECT 1 FROM {table} LIMIT 1")).first() for table in _TABLES)  # noqa: S608
    if any(found):
        vault = service.state.ports.vault
        until = datetime.now(UTC) + _PERMIT_DURATION
        permits = sa.table("unsealed_row_permits", sa.column("id"), sa.column("sealed"))
        sealed = vault.seal(until.isoformat().encode(), _Location("unsealed_row_permits", "sealed", "1"))
        op.bulk_insert(permits, [{"id": 1, "sealed": sealed}])


class _Location:
    """What the permit is sealed to."""

    def __init__(self, table: str, column: str, row_id: str) -> None:
        self.table, self.column, self.row_id = table, column, row_id


def downgrade() -> None:
    """Drop and rename everything back. The release before verifies no row; what failed submissions cost is forgotten."""
    _lock((*_TABLES, "idempotency_keys", "service_purchases", "event_targets", "payments", *(new for _, new, *_ in _RENAMED)))
    for name in ("unsealed_row_permits", "event_queues", "settlement_risks", "open_payments", "price_lists"):
        op.drop_table(name)
    op.drop_index("ix_event_targets_queue", "event_targets")
    op.execute(_PAYMENTS.update().where(_PAYMENTS.c.status == "reversed").values(status="lost"))
    for old, new, old_column, new_column in _RENAMED:
        op.alter_column(new, new_column, new_column_name=old_column)
        op.rename_table(new, old)
    for table, column in reversed(_columns()):
        op.drop_column(table, column.name)
