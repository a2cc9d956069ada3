"""idempotency_keys.request_hmac and service_purchases.answer_status

The digest of what a request asks for, next to that of its bytes; and the status of what a payment bought.

Revision: 0031; after: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Rows of the previous version are recognized by their bytes until they expire."""
    if op.get_context().dialect.name == "postgresql":
        # Both at once: while the second is waited for, nobody can read the first.
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute("LOCK TABLE idempotency_keys, service_purchases IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
    op.add_column("idempotency_keys", sa.Column("request_hmac", sa.String(64), nullable=True))
    op.add_column("service_purchases", sa.Column("answer_status", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("service_purchases", "answer_status")
    op.drop_column("idempotency_keys", "request_hmac")
