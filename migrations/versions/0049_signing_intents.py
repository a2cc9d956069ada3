"""What a signer process is asked to sign.

Revision: 0049; after: 0048
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None
UNITS = sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "signing_intents",
        sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("recipient", sa.String(64), nullable=False),
        sa.Column("amount_units", UNITS, nullable=False),
        sa.Column("currency", sa.String(10), nullable=False),
        sa.Column("minimum_units", UNITS, nullable=True),
        sa.Column("hold_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("nonce", sa.BigInteger(), nullable=True),
        sa.Column("valid_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("mac", sa.String(80), nullable=True),
    )
    op.create_index("ix_signing_intents_created_at", "signing_intents", ["created_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("signing_intents")
