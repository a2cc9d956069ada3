"""What the treasury holds on each chain.

Revision: 0040; after: 0039
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    units = sa.String(80) if op.get_bind().dialect.name == "sqlite" else sa.Numeric(78, 0)
    op.add_column("settlement_gas_reserves", sa.Column("treasury_units", units, nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("settlement_gas_reserves", "treasury_units")
