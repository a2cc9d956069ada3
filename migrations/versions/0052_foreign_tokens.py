"""Foreign tokens: where a wallet's were searched, and currencies that are an address.

Revision: 0052; after: 0051
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

_TABLES = ("transactions", "signing_intents")


def upgrade() -> None:
    """Add the table, and make room for the contract of a token with its decimals."""
    op.create_table(
        "foreign_token_searches",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), primary_key=True),
        sa.Column("chain", sa.String(20), primary_key=True),
        sa.Column("contracts", sa.JSON, nullable=False),
        sa.Column("block_number", sa.BigInteger, nullable=False),
    )
    _resize(10, 50)


def downgrade() -> None:
    """Drop the table; movements of foreign tokens cannot be kept."""
    _resize(50, 10)
    op.drop_table("foreign_token_searches")


def _resize(before: int, after: int) -> None:
    # SQLite does not check lengths, and a copy of these tables would take long.
    if op.get_bind().dialect.name == "postgresql":
        for table in _TABLES:
            op.alter_column(table, "currency", type_=sa.String(after), existing_type=sa.String(before))
