"""Tables of shopping, and the state machine of purchases. Amounts are nano-dollars.

`submitting` is committed before the order button may be clicked and is entered once: a worker that finds a purchase in
it must not click again.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import JSON, BigInteger, CheckConstraint, Index, LargeBinary, Row, String, Text
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core import clock
from app.core.money import usd_string
from app.db.state_machine import StateMachine
from app.db.tables import ID, UtcDateTime, partial_index
from app.events import outbox
from app.events.outbox import EventType
from app.extensions import Model

SCREENSHOT_TYPE = "image/png"
PAGE_TYPE = "text/html"


class Purchase(Model):
    """One purchase. `sealed` holds credentials and address until it ends; a worker owns the row by `holder`.

    The unique index permits one purchase at a time per shop account: two would share its cart.
    """

    __tablename__ = "purchases"
    __allow_unmapped__ = True
    __table_args__ = (
        Index("ix_purchases_account_id_order_digest", "account_id", "order_digest"),
        Index("ix_purchases_status_lease_until", "status", "lease_until"),
        Index("ix_purchases_wallet_id_status", "wallet_id", "status"),
        partial_index(
            "uq_purchases_shop_account_at_work", "shop_account_digest", where="status IN ('running', 'submitting')",
            unique=True,
        ),
        CheckConstraint("quantity > 0", name="ck_purchases_quantity"),
        CheckConstraint("total_nanos >= 0", name="ck_purchases_total"),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    account_id: Mapped[str] = mapped_column(ID)
    wallet_id: Mapped[str | None] = mapped_column(ID)
    status: Mapped[str] = mapped_column(String(20))
    url: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(255))
    quantity: Mapped[int]
    dry_run: Mapped[bool]
    max_total_nanos: Mapped[int | None] = mapped_column(BigInteger)
    sealed: Mapped[str | None] = mapped_column(Text)
    order_digest: Mapped[str] = mapped_column(String(64))
    shop_account_digest: Mapped[str] = mapped_column(String(64))
    first_page: Mapped[bool]
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    product: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    total_nanos: Mapped[int | None] = mapped_column(BigInteger)
    outcome: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    holder: Mapped[str | None] = mapped_column(ID)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The request that caused it, for the logs.
    request_id: Mapped[str | None] = mapped_column(String(40))
    # The owner's approval, whose hold becomes the order's; and the most that was approved.
    approval_id: Mapped[str | None] = mapped_column(ID)
    approved_nanos: Mapped[int | None] = mapped_column(BigInteger)

    steps: Sequence[Row[str, str, str, datetime]] = ()
    evidence: Sequence[Row[str, str]] = ()
    """The steps, and the ids and names of the screenshots, of a purchase that was read alone."""

    @property
    def is_open(self) -> bool:
        """Return whether its status will still change automatically."""
        return self.status in OPEN_STATUSES


class PurchaseEvent(Model):
    __tablename__ = "purchase_events"
    __table_args__ = (Index("ix_purchase_events_purchase_id", "purchase_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    purchase_id: Mapped[str] = mapped_column(ID)
    status: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(String(40))
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class PurchaseStep(Model):
    """A step of the browser, without what it typed."""

    __tablename__ = "purchase_steps"
    __table_args__ = (Index("ix_purchase_steps_purchase_id", "purchase_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    purchase_id: Mapped[str] = mapped_column(ID)
    action: Mapped[str] = mapped_column(String(40))
    text: Mapped[str] = mapped_column(String(200))
    path: Mapped[str] = mapped_column(String(200))
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class PurchaseEvidence(Model):
    """A screenshot, shown to the purchase's owner for thirty days, or the document of a page, for the operator."""

    __tablename__ = "purchase_evidence"
    __table_args__ = (
        Index("ix_purchase_evidence_purchase_id", "purchase_id"),
        Index("ix_purchase_evidence_created_at", "created_at"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    purchase_id: Mapped[str] = mapped_column(ID)
    name: Mapped[str] = mapped_column(String(40))
    media_type: Mapped[str] = mapped_column(String(40), server_default=SCREENSHOT_TYPE)
    content: Mapped[bytes] = mapped_column("png", LargeBinary)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PurchaseStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUBMITTING = "submitting"
    COMPLETED = "completed"
    PREVIEW = "preview"
    ACTION_REQUIRED = "action_required"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


OPEN_STATUSES = frozenset({PurchaseStatus.QUEUED, PurchaseStatus.RUNNING, PurchaseStatus.SUBMITTING})
"""The states that a purchase leaves automatically."""


def _values(status: PurchaseStatus, _reason: str | None) -> dict[str, Any]:
    # Credentials and address are not needed after the end.
    return {} if status in OPEN_STATUSES else {"sealed": None, "finished_at": clock.now()}


def _announce(session: Session, row: Any, status: PurchaseStatus, reason: str | None) -> None:
    """Record the event of a status. An account without a wallet has no agent: only operators see its purchases."""
    data = {
        "purchase_id": row.id, "wallet_id": row.wallet_id, "status": status.value, "reason": reason, "host": row.host,
        "quantity": row.quantity, "dry_run": row.dry_run,
        "total_usd": None if row.total_nanos is None else usd_string(row.total_nanos),
    }  # fmt: skip
    agent_id = None if row.wallet_id is None else row.account_id
    outbox.record(session, EventType(f"purchase.{status.value}"), agent_id=agent_id, object_id=row.id, data=data)


PURCHASES = StateMachine(
    Purchase.status,
    initial={PurchaseStatus.QUEUED},
    permitted={
        # `unknown` after a database restore.
        PurchaseStatus.QUEUED: {
            PurchaseStatus.RUNNING, PurchaseStatus.CANCELLED, PurchaseStatus.FAILED, PurchaseStatus.UNKNOWN,
        },
        PurchaseStatus.RUNNING: {
            PurchaseStatus.SUBMITTING, PurchaseStatus.PREVIEW, PurchaseStatus.ACTION_REQUIRED,
            PurchaseStatus.FAILED, PurchaseStatus.UNKNOWN,
        },
        PurchaseStatus.SUBMITTING: {PurchaseStatus.COMPLETED, PurchaseStatus.UNKNOWN},
        # The shop's confirmation was seen late.
        PurchaseStatus.UNKNOWN: {PurchaseStatus.COMPLETED},
    },
    event=PurchaseEvent,
    logger=structlog.get_logger(__name__),
    values=_values,
    announce=_announce,
    announced=(
        Purchase.id, Purchase.account_id, Purchase.wallet_id, Purchase.host, Purchase.quantity, Purchase.dry_run,
        Purchase.total_nanos,
    ),
)  # fmt: skip
