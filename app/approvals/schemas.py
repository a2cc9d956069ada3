"""Schemas of approvals, and what a kind of movement has to define for them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.approvals.models import ApprovalStatus
from app.core import movement_kinds
from app.core.movement_kinds import MovementKind
from app.idempotency.service import Claim
from app.spending.approval_rules import ApprovalReason
from app.spending.policy import ApprovedPayment
from app.web.fields import Identifier, Instant, Text, Usd
from app.web.schemas import PageQuery, Schema, page_schema


@dataclass(frozen=True, slots=True)
class ApprovedRequest:
    agent_id: str
    wallet_id: str
    body: Mapping[str, Any]
    approved: ApprovedPayment


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovableMovement(ABC):
    name: MovementKind
    title: str
    """As the owner reads it."""
    body: Schema
    """Loads a request, and what an approval stores of it."""
    follows_market: bool = False
    """Whether its price is a market's, and moves while the owner decides."""
    takes_hold: bool = False
    """Whether what is executed takes the approval's hold later, instead of having its own."""

    @abstractmethod
    def execute(self, request: ApprovedRequest, claim: Claim) -> None:
        """Execute an approved request as its view would, binding what it records to the claim. Raises: ServiceError."""


APPROVAL_NOTE = Text(
    load_default=None,
    allow_none=True,
    validate=ma.validate.Length(max=500, error="must have at most 500 characters"),
    metadata={"description": "What the owner reads about this payment if it needs an approval; marked as your words."},
)
"""The agent's own words for the owner, in every body that may need an approval."""


class ApprovalReference(Schema):
    """An approval in the response to the request that needs it."""

    id = fields.UUID(required=True)
    url = fields.String(required=True)
    expires_at = Instant(required=True)
    request_hash = fields.String(required=True)
    reason = fields.String(required=True, metadata={"enum": list(ApprovalReason)})


class AwaitingApproval(Schema):
    """The answer to a payment that the owner has to approve. Its value is held; nothing is paid yet."""

    status = fields.String(required=True, metadata={"example": "awaiting_approval"})
    message = fields.String(required=True)
    approval = fields.Nested(ApprovalReference, required=True)


class ApprovalNoticeShape(Schema):
    """A notice of the request to the owner."""

    kind = fields.String(required=True, metadata={"enum": ["webhook", "email", "web_push"]})
    status = fields.String(required=True, metadata={"enum": ["pending", "delivered", "failed"]})
    tries = fields.Integer(required=True)
    delivered_at = Instant(required=True, allow_none=True)


class ApprovalShape(ApprovalReference):
    """A payment that waits, or waited, for its owner."""

    agent_id = fields.UUID(required=True)
    wallet_id = fields.UUID(required=True)
    kind = fields.String(required=True, metadata={"enum": list(movement_kinds.REQUESTED)})
    status = fields.String(required=True, metadata={"enum": list(ApprovalStatus)})
    value_usd = Usd(required=True, attribute="value_nanos")
    recipient = fields.String(required=True, allow_none=True)
    domain = fields.String(required=True, allow_none=True)
    answer = fields.String(required=True, allow_none=True)
    transaction_id = fields.UUID(required=True, allow_none=True)
    purchase_id = fields.UUID(required=True, allow_none=True)
    error = fields.Dict(required=True, allow_none=True)
    notified = fields.Boolean(required=True)
    notices = fields.List(fields.Nested(ApprovalNoticeShape), required=True)
    created_at = Instant(required=True)
    decided_at = Instant(required=True, allow_none=True)
    finished_at = Instant(required=True, allow_none=True)


ApprovalPage = page_schema("ApprovalPage", "approvals", ApprovalShape, "A page of approvals, newest first.")


class ApprovalQuery(PageQuery):  # type: ignore[misc, valid-type]
    """Pagination and a filter of approvals."""

    status = fields.Enum(ApprovalStatus, by_value=fields.String, load_default=None)


class AllApprovalsQuery(ApprovalQuery):
    """The same, of all agents."""

    agent_id = Identifier(load_default=None)
