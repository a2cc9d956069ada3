"""Applications of owners: clients of OAuth, grants, codes and refresh tokens.

Revision: 0030; after: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_ID = sa.Uuid(as_uuid=False)
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "oauth_clients",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("redirect_uris", sa.JSON(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "oauth_grants",
        sa.Column("id", _ID, nullable=False),
        sa.Column("agent_id", _ID, nullable=False),
        sa.Column("client_id", sa.String(500), nullable=False),
        sa.Column("client_name", sa.String(100), nullable=False),
        sa.Column("client_host", sa.String(260), nullable=False),
        sa.Column("resource", sa.String(500), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("wallet_id", _ID, nullable=True),
        sa.Column("session_id", _ID, nullable=True),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.Column("used_at", _TIME, nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "oauth_tokens",
        sa.Column("id", _ID, nullable=False),
        sa.Column("kind", sa.String(2), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("user_code_digest", sa.String(64), nullable=True),
        sa.Column("grant_id", _ID, nullable=True),
        sa.Column("client_id", sa.String(500), nullable=False),
        sa.Column("client_name", sa.String(100), nullable=False),
        sa.Column("scope", sa.String(200), nullable=False),
        sa.Column("redirect_uri", sa.Text(), nullable=True),
        sa.Column("code_challenge", sa.String(128), nullable=True),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("used_at", _TIME, nullable=True),
        sa.Column("denied_at", _TIME, nullable=True),
        sa.Column("polled_at", _TIME, nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.ForeignKeyConstraint(["grant_id"], ["oauth_grants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
        sa.UniqueConstraint("user_code_digest"),
    )
    op.create_index("ix_oauth_clients_expires_at", "oauth_clients", ["expires_at"])
    op.create_index("ix_oauth_grants_agent_id", "oauth_grants", ["agent_id"])
    op.create_index("ix_oauth_grants_expires_at", "oauth_grants", ["expires_at"])
    op.create_index("ix_oauth_tokens_grant_id", "oauth_tokens", ["grant_id"])
    op.create_index("ix_oauth_tokens_expires_at", "oauth_tokens", ["expires_at"])


def downgrade() -> None:
    """Drop the tables; the access tokens stay as keys whose text nobody has accepted, until they expire."""
    for name in ("oauth_tokens", "oauth_grants", "oauth_clients"):
        op.drop_table(name)
