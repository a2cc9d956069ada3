"""transactions.max_fee_nanos: what the request allows for the network

Revision: 0035; after: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; movements without it are bounded by the operator's cap."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.add_column("transactions", sa.Column("max_fee_nanos", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("transactions", "max_fee_nanos")
