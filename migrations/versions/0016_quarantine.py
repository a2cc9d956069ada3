"""transactions: since when a row is quarantined, instead of a date of its next check that never comes

Revision: 0016; after: 0015
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
_TRANSACTIONS = sa.table(
    "transactions",
    sa.column("next_check_at", sa.DateTime(timezone=True)),
    sa.column("quarantined_at", sa.DateTime(timezone=True)),
)
_PAYMENTS = sa.table("payments", sa.column("status", sa.String()), sa.column("tries", sa.Integer()))


def upgrade() -> None:
    """Add the column; the date stays in converted rows, because it is what the previous version obeys meanwhile."""
    op.add_column("transactions", sa.Column("quarantined_at", sa.DateTime(timezone=True), nullable=True))
    quarantined = _TRANSACTIONS.c.next_check_at == _NEVER
    op.execute(_TRANSACTIONS.update().where(quarantined).values(quarantined_at=datetime.now(UTC)))


def downgrade() -> None:
    """Drop it. A closed payment is again one without attempts left."""
    quarantined = _TRANSACTIONS.c.quarantined_at.is_not(None)
    op.execute(_TRANSACTIONS.update().where(quarantined).values(next_check_at=_NEVER))
    op.execute(_PAYMENTS.update().where(_PAYMENTS.c.status == "closed").values(status="paid", tries=4))
    op.drop_column("transactions", "quarantined_at")
