"""`/v1/credits`: top-ups of credits with USDC from the agent's wallets."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from flask import Response
from marshmallow import fields

from app.approvals import asking
from app.approvals.execution import ApprovedRequest
from app.approvals.lifecycle import ApprovalKind
from app.approvals.schemas import APPROVAL_NOTE, AwaitingApproval
from app.core.chains import USDC
from app.errors import NotFound, TransferFailed
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.payments import topups
from app.wallets.api.movement_routes import rebuild_from_record
from app.wallets.api.movement_schemas import MovementShape
from app.wallets.api.routes import LIMIT_ERRORS
from app.wallets.core import wallets
from app.wallets.views.history import TransactionView
from app.web import prefer
from app.web.blueprint import Blueprint
from app.web.fields import AmountField, Symbol, Text
from app.web.schemas import EXAMPLE_ID, Schema

blp = Blueprint(
    "credits",
    guard=guards.AGENT_KEY,
    url_prefix="/v1/credits",
    description="Credits that pay for gateway and catalog calls.",
)


class TopUpBody(Schema):
    """A top-up request."""

    wallet_id = Text(required=True, metadata={"description": "One of the agent's wallets.", "example": EXAMPLE_ID})
    amount = AmountField(required=True, metadata={"type": "string", "example": "10", "description": "In USDC."})
    chain = Symbol(required=True, metadata={"enum": ["ethereum", "base", "solana"]})
    approval_note = APPROVAL_NOTE


_BODY = TopUpBody()


class TopUpShape(MovementShape):
    """The transfer to the treasury. Its value is credited once it is final."""

    kind = fields.String(required=True, metadata={"enum": ["topup"]})


@blp.post("/topup")
@idempotent(
    owner=guards.require_agent,
    rebuild=rebuild_from_record,
    note="Repeating a request with the same key transfers nothing again.",
)
@blp.arguments(TopUpBody)
@blp.response(200, TopUpShape)
@blp.alt_response(asking.ACCEPTED, schema=AwaitingApproval, description=asking.DESCRIPTION)
@blp.raises(NotFound, *LIMIT_ERRORS, TransferFailed)
@blp.header("Prefer", "`respond-async` returns immediately; `wait=N` waits up to N (at most 25) seconds.")
def top_up(body: dict[str, Any], claim: Claim) -> TransactionView | Response:
    """Buy credits with USDC of a wallet, under its limits; they are granted when the transfer is final."""
    wallet = wallets.get_owned(body["wallet_id"], agent_id=guards.require_agent())
    wait = prefer.wait_seconds()
    return asking.or_ask(
        ApprovalKind.TOPUP,
        lambda: topups.create_topup(wallet, chain=body["chain"], amount=body["amount"], wait_seconds=wait, claim=claim),
        schema=_BODY,
        body={**body, "currency": USDC.symbol},
        claim=claim,
        try_out=lambda approved: topups.quote(
            replace(wallet, approved=approved), chain=body["chain"], amount=body["amount"]
        ),
    )


def execute_approved(request: ApprovedRequest, claim: Claim) -> None:
    """Execute an approved top-up."""
    wallet, body = wallets.get_approved(request), _BODY.load(request.body)
    topups.create_topup(wallet, chain=body["chain"], amount=body["amount"], wait_seconds=Decimal(0), claim=claim)
