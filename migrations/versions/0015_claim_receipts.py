"""claim codes: the receipt of the client that claimed, and how often the answer was repeated

Revision: 0015; after: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; claims made before have no receipt, so their owner keys are not repeated."""
    op.add_column("claim_codes", sa.Column("receipt_digest", sa.String(length=64), nullable=True))
    op.add_column("claim_codes", sa.Column("repeats", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("claim_codes", "repeats")
    op.drop_column("claim_codes", "receipt_digest")
