"""Top-ups that are granted before their transfer is final: what one that could not land after all left owing.

Revision: 0032; after: 0031
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; present top-ups owe nothing."""
    with op.batch_alter_table("topups") as batch:
        batch.add_column(sa.Column("owed_nanos", sa.BigInteger(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    """Drop the column: what is owed is forgotten."""
    with op.batch_alter_table("topups") as batch:
        batch.drop_column("owed_nanos")
