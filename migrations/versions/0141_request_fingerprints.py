"""idempotency_keys.request_hmac: the digest of what a request asks for, beside that of its bytes

Revision: 0141; after: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0141"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; rows of the previous version are recognized by their bytes until they expire."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.add_column("idempotency_keys", sa.Column("request_hmac", sa.String(64), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("idempotency_keys", "request_hmac")
