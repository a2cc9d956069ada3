"""spending_holds.paid_by_credits: calls that count against a session, not against the limits of the wallet

Revision: 0026; after: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; all existing holds are of movements."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.add_column(
        "spending_holds", sa.Column("paid_by_credits", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Drop the column. The audit of the release before reports the holds that had it: no wallet counts them."""
    op.drop_column("spending_holds", "paid_by_credits")
