"""owner_passkeys, used_passkey_challenges: sign-in and confirmation by passkey

Revision: 0022; after: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "owner_passkeys",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("owner_key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("credential_digest", sa.String(64), nullable=False),
        sa.Column("credential_id", sa.LargeBinary(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("sign_count", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["owner_key_id"], ["owner_keys.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("credential_digest"),
    )
    op.create_index("ix_owner_passkeys_owner_key_id", "owner_passkeys", ["owner_key_id"])
    op.create_table(
        "used_passkey_challenges",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_used_passkey_challenges_expires_at", "used_passkey_challenges", ["expires_at"])


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("used_passkey_challenges")
    op.drop_table("owner_passkeys")
