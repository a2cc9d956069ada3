"""purchase_evidence.media_type: screenshots, and documents of pages on which purchases failed

Revision: 0028; after: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; everything stored so far is a screenshot."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.add_column(
        "purchase_evidence",
        sa.Column("media_type", sa.String(40), nullable=False, server_default="image/png"),
    )


def downgrade() -> None:
    """Drop the column. The release before offers the documents as images, which do not show, until they expire."""
    op.drop_column("purchase_evidence", "media_type")
