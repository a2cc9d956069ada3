"""authenticated rows: a MAC in each row that gives power, and the versions of spending controls

Revision: 0034; after: 0033
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op
from flask import current_app as service

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_TABLES = (
    "agents", "api_keys", "master_keys", "owner_keys", "owner_sessions", "owner_session_keys", "owner_passkeys",
    "claim_codes", "wallets", "payment_wallets", "spending_accounts", "spending_controls", "spending_holds",
    "spending_sessions", "approved_payees", "approvals", "services", "transactions", "signed_attempts", "bridges",
)  # fmt: skip
_PERMIT_DURATION = timedelta(hours=24)


def upgrade() -> None:
    """Add the columns, and permit rows without a MAC for a day if there are any.

    Processes of the previous version still write such rows; the hourly audit seals them. A new database gets no permit.
    """
    if op.get_context().dialect.name == "postgresql":
        # All at once: while the second is waited for, nobody can read the first.
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute(f"LOCK TABLE {', '.join(_TABLES)} IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
    for table in _TABLES:
        op.add_column(table, sa.Column("mac", sa.String(80), nullable=True))
    op.add_column("spending_accounts", sa.Column("controls_version", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("spending_controls", sa.Column("version", sa.BigInteger(), nullable=False, server_default="1"))
    permits = op.create_table(
        "unsealed_row_permits",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    if op.get_context().as_sql:
        return
    found = (op.get_bind().execute(sa.text(f"SELECT 1 FROM {table} LIMIT 1")).first() for table in _TABLES)  # noqa: S608
    if any(found):
        vault = service.state.ports.vault
        location = _Location("unsealed_row_permits", "sealed", "1")
        until = datetime.now(UTC) + _PERMIT_DURATION
        op.bulk_insert(permits, [{"id": 1, "sealed": vault.seal(until.isoformat().encode(), location)}])


class _Location:
    """What the permit is sealed to."""

    def __init__(self, table: str, column: str, row_id: str) -> None:
        self.table, self.column, self.row_id = table, column, row_id


def downgrade() -> None:
    """Drop everything. The release before verifies no row."""
    op.drop_table("unsealed_row_permits")
    op.drop_column("spending_controls", "version")
    op.drop_column("spending_accounts", "controls_version")
    for table in reversed(_TABLES):
        op.drop_column(table, "mac")
