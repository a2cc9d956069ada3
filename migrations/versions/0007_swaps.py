"""swaps: what an exchange was quoted to bring, brings at least, and has brought

Revision: 0007; after: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_UNITS = sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite")
_COLUMNS = ("output_quoted_units", "output_minimum_units", "output_units")


def upgrade() -> None:
    """Add the columns of an exchange's output."""
    op.add_column("transactions", sa.Column("output_currency", sa.String(length=10), nullable=True))
    for name in _COLUMNS:
        op.add_column("transactions", sa.Column(name, _UNITS, nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in reversed(_COLUMNS):
        op.drop_column("transactions", name)
    op.drop_column("transactions", "output_currency")
