"""The table of approvals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.core.movement_kinds import MovementKind
from app.db.columns import ID, UtcDateTime, partial_index
from app.events.notices import OwnerNotice
from app.extensions import Model
from app.state import app_state


def page_url(agent_id: str, approval_id: str) -> str:
    """Return the page on which the owner decides."""
    return f"{app_state().settings.public_url}/owner/agents/{agent_id}/approvals/{approval_id}"


class Approval(Authenticated, Model):
    """A payment that an agent requested and its owner decides on; its id is the reference of its hold."""

    __tablename__ = "approvals"
    __allow_unmapped__ = True
    not_authenticated = frozenset({
        "sealed", "answer", "subject_id", "error", "holder", "lease_until", "request_id", "created_at",
        "finished_at"
    })  # fmt: skip
    __table_args__ = (
        Index("ix_approvals_agent_id", "agent_id", "created_at", "id"),
        Index("ix_approvals_created_at", "created_at", "id"),
        partial_index("ix_approvals_open", "wallet_id", "expires_at", where="status IN ('awaiting', 'approved')"),
        CheckConstraint("value_nanos >= 0", name="ck_approvals_value"),
        CheckConstraint(
            "status IN ('awaiting', 'approved', 'executed', 'rejected', 'expired', 'cancelled', 'failed')",
            name="ck_approvals_status",
        ),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    wallet_id: Mapped[str] = mapped_column(ID)
    kind: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(10))
    reason: Mapped[str] = mapped_column(String(40))
    value_nanos: Mapped[int] = mapped_column(BigInteger)
    recipient: Mapped[str | None] = mapped_column(String(64))
    domain: Mapped[str | None] = mapped_column(String(253))
    facts: Mapped[dict[str, str]] = mapped_column(JSON)
    # The agent's own words.
    note: Mapped[str | None] = mapped_column(Text)
    # SHA-256 of what is sealed: the request, its facts, and a salt, since a request may hold a password.
    request_hash: Mapped[str] = mapped_column(String(64))
    sealed: Mapped[str | None] = mapped_column(Text)
    # The owner's words, and how the owner was authenticated.
    answer: Mapped[str | None] = mapped_column(Text)
    decided_by: Mapped[str | None] = mapped_column(String(40))
    # The movement or purchase that was recorded.
    subject_id: Mapped[str | None] = mapped_column(ID)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    holder: Mapped[str | None] = mapped_column(ID)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    request_id: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    decided_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    notices: Sequence[OwnerNotice] = ()
    """The notices of its request, if it was read to be shown."""

    @property
    def is_open(self) -> bool:
        """Return whether its status will still change."""
        return self.finished_at is None

    @property
    def url(self) -> str:
        return page_url(self.agent_id, self.id)

    @property
    def notified(self) -> bool:
        """Return whether a notice of the request has reached the owner."""
        return any(each.delivered_at is not None for each in self.notices)

    @property
    def transaction_id(self) -> str | None:
        """Return the movement that was recorded, if it is one."""
        return None if self.kind == MovementKind.PURCHASE else self.subject_id

    @property
    def purchase_id(self) -> str | None:
        return self.subject_id if self.kind == MovementKind.PURCHASE else None
