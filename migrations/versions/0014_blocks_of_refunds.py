"""bridges: the block in which a refund came back, so that it can be seen to be gone

Revision: 0014; after: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; refunds that are there already are believed."""
    op.add_column("bridges", sa.Column("refund_block_hash", sa.String(length=100), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("bridges", "refund_block_hash")
