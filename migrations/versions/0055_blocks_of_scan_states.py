"""The blocks since which own transactions are unexplained, where they were ahead of the scan state.

Revision: 0055; after: 0054
"""

from __future__ import annotations

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take the block of each scan state of an EVM chain that is ahead of it back to it."""
    is_postgresql = op.get_context().dialect.name == "postgresql"
    number = "CAST(mark ->> 'number' AS bigint)" if is_postgresql else "json_extract(mark, '$.number')"
    op.execute(f"UPDATE deposit_marks SET block_number = {number} WHERE chain <> 'solana' AND {number} < block_number")  # noqa: S608


def downgrade() -> None:
    """Leave the blocks: an earlier one only makes a scan list more transactions."""
