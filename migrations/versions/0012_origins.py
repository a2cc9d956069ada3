"""origins: which request a movement, a purchase or a payment goes back to; and refunds of bridges

Revision: 0012; after: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TABLES = ("transactions", "purchases", "payments")
_UNITS = sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite")


def upgrade() -> None:
    """Add the columns; rows that are there already go back to nothing that is known."""
    if op.get_context().dialect.name == "postgresql":
        # All at once: while the second is waited for, nobody can read the first.
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute("LOCK TABLE transactions, purchases, payments, bridges IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
    for table in _TABLES:
        op.add_column(table, sa.Column("request_id", sa.String(length=40), nullable=True))
    op.add_column("bridges", sa.Column("may_return", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("bridges", sa.Column("refund_hash", sa.String(length=100), nullable=True))
    op.add_column("bridges", sa.Column("refund_block", sa.BigInteger(), nullable=True))
    op.add_column("bridges", sa.Column("refund_units", _UNITS, nullable=True))


def downgrade() -> None:
    """Drop them."""
    for column in ("refund_units", "refund_block", "refund_hash", "may_return"):
        op.drop_column("bridges", column)
    for table in reversed(_TABLES):
        op.drop_column(table, "request_id")
