"""Tokens that a call read from a cache, and those of its reasoning.

Revision: 0036; after: 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    for name in ("cached_tokens", "reasoning_tokens"):
        op.add_column("usage_logs", sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    """Drop them."""
    for name in ("reasoning_tokens", "cached_tokens"):
        op.drop_column("usage_logs", name)
