"""in flight: the index of movements on chains without nonces

Revision: 0005; after: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_IN_FLIGHT = sa.text("nonce IS NULL AND fee_cap_units IS NOT NULL")


def upgrade() -> None:
    """Add the index."""
    op.create_index(
        "ix_transactions_in_flight",
        "transactions",
        ["chain", "from_address", "block_number"],
        postgresql_where=_IN_FLIGHT,
        sqlite_where=_IN_FLIGHT,
    )


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_transactions_in_flight", table_name="transactions")
