"""The answer 202 to a payment that the owner has to approve: one mechanism for every route that moves money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flask import Response, jsonify

from app.approvals import service
from app.approvals.kinds import ApprovableMovement
from app.approvals.models import Approval, ApprovalStatus
from app.approvals.schemas import AwaitingApproval
from app.approvals.service import PaymentRequest
from app.core.money import usd_string
from app.errors import ApprovalRequired, InvalidInput, ServiceError
from app.idempotency.service import Claim
from app.spending.policy import ApprovedPayment, SpendingRequest
from app.web.schemas import canonical_json, validated_fields

ResultT = TypeVar("ResultT")

ACCEPTED = 202
DESCRIPTION = "The owner has to approve it: its value is held, and nothing is paid yet."
# The fields of validated bodies that the owner is shown; a new one is not shown until it is listed.
_FACTS = (
    "chain", "source_chain", "destination_chain", "to", "amount", "currency", "token", "input_token", "output_token",
    "slippage_bps", "method", "url", "quantity",
)  # fmt: skip
_USD_FACTS = ("max_amount_usd", "max_total_usd")
_MAX_FACT = 300
_CERTAIN_REASONS = frozenset({"insufficient_funds", "insufficient_gas"})
# Prices move between two readings.
_MARGIN = 2
_MESSAGES: Mapping[ApprovalStatus, str] = {
    ApprovalStatus.AWAITING: "The owner has to approve this payment. Its value is held; nothing is paid yet. Read "
    "GET /v1/approvals/{id} with `Prefer: wait=25`.",
    ApprovalStatus.APPROVED: "The owner approved this payment; it is being executed.",
    ApprovalStatus.EXECUTED: "The owner approved this payment, and it was executed. Read its transaction.",
    ApprovalStatus.REJECTED: "The owner refused this payment; nothing was paid.",
    ApprovalStatus.EXPIRED: "The owner did not decide in time; nothing was paid.",
    ApprovalStatus.CANCELLED: "This request was cancelled; nothing was paid.",
    ApprovalStatus.FAILED: "The owner approved this payment, but it was refused then; nothing was paid.",
}


def or_ask(
    kind: ApprovableMovement,
    pay: Callable[[], ResultT],
    *,
    body: Mapping[str, Any],
    claim: Claim,
    try_out: Callable[[ApprovedPayment], object] | None = None,
) -> ResultT | Response:
    """Return the result of a payment, or the answer 202 if the owner has to approve it.

    `body` is what its schema has loaded of the current request: that alone is stored and executed later. `try_out`
    checks without signing what would be paid if approved: the owner is not asked for what the wallet cannot pay.

    Raises: what `pay` raises; what `try_out` raises, if an approval would not change it; LimitReached.
    """
    try:
        return pay()
    except ApprovalRequired as needed:
        if try_out is not None:
            _try_out(try_out, needed.spending_request)
        request = PaymentRequest(
            kind=kind.name,
            body=canonical_json(validated_fields(kind.body, body)),
            facts=_facts_of(body),
            note=body.get("approval_note"),
        )
        return awaiting_response(service.request_approval(request, needed, claim=claim))


def _try_out(try_out: Callable[[ApprovedPayment], object], asked: SpendingRequest) -> None:
    most_nanos = (asked.value_nanos or 0) * _MARGIN
    try:
        try_out(ApprovedPayment("", most_nanos, asked.recipient, asked.domain))
    except ServiceError as refusal:
        # A chain that cannot be read now may be readable when the owner decides, and a price may change.
        if refusal.details.get("reason") in _CERTAIN_REASONS or isinstance(refusal, InvalidInput):
            raise


def rebuilt(subject_id: str, rebuild: Callable[[str], Any]) -> Any:
    """Return the answer to a repeated request: of its approval, if it needed one, else what `rebuild` returns."""
    approval = service.find(subject_id)
    return rebuild(subject_id) if approval is None else awaiting_response(approval)


def awaiting_response(approval: Approval) -> Response:
    """Return the answer to a request that an approval stands for."""
    status = "awaiting_approval" if approval.status == ApprovalStatus.AWAITING else approval.status
    values = {"status": status, "message": _MESSAGES[ApprovalStatus(approval.status)], "approval": approval}
    response = jsonify(AwaitingApproval().dump(values))
    response.status_code = ACCEPTED
    response.headers["Location"] = f"/v1/approvals/{approval.id}"
    return response


def _facts_of(body: Mapping[str, Any]) -> dict[str, str]:
    facts = {name: str(body[name]) for name in _FACTS if body.get(name) is not None}
    if "url" in facts:
        # A query may hold a key of the agent.
        facts["url"] = urlsplit(facts["url"])._replace(query="", fragment="").geturl()
    facts |= {name: f"{usd_string(body[name])} USD" for name in _USD_FACTS if body.get(name) is not None}
    return {name: value[:_MAX_FACT] for name, value in facts.items()}
