"""`/v1/approvals`: payments that wait for the owner. Approvals of other agents are not found (404)."""

from typing import Any

from app import long_poll
from app.approvals import schemas, service
from app.approvals.models import Approval
from app.core.pagination import Page
from app.errors import NotFound
from app.identity import guards
from app.web.blueprint import Blueprint
from app.web.client_request import wait_seconds

blp = Blueprint("approvals", guard=guards.AGENT_KEY, url_prefix="/v1/approvals")


@blp.get("")
@blp.arguments(schemas.ApprovalQuery, location="query")
@blp.response(200, schemas.ApprovalPage)
def list_approvals(query: dict[str, Any]) -> Page[Approval]:
    """List the agent's approvals, newest first."""
    wallet_id = guards.current_principal().only_wallet_id
    return service.list_of(query["page"], agent_id=guards.require_agent(), wallet_id=wallet_id, status=query["status"])


@blp.get("/<string:approval_id>")
@blp.response(200, schemas.ApprovalShape)
@blp.header("Prefer", "`wait=N` waits up to N (at most 25) seconds for the decision and its execution.")
def get_approval(approval_id: str) -> Approval:
    """Read an approval: the owner's decision, and the transaction that was executed."""
    approval = service.get(approval_id, agent_id=guards.require_agent())
    if guards.current_principal().agent_of_wallet(approval.wallet_id) is None:
        raise NotFound
    return long_poll.wait(
        approval, lambda found: service.get(found.id), lambda found: not found.is_open,
        seconds=wait_seconds() or long_poll.NO_WAIT, account_id=guards.current_principal().account_id,
    )  # fmt: skip


@blp.post("/<string:approval_id>/cancel")
@blp.response(200, schemas.ApprovalShape)
def cancel_approval(approval_id: str) -> Approval:
    """Cancel a request that the owner has not decided. Read `status`: the owner may have been faster."""
    return service.cancel(service.get(approval_id, agent_id=guards.require_agent()))
