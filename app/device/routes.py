"""The JSON routes of claiming; they need a claim code and no key."""

from typing import Any

from app.agents.claims import ActiveClaimCode
from app.device import service
from app.device.schemas import ClaimRequest, ClaimResponse, CodeInfoResponse, CodeQuery
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound
from app.identity.guards import KEYLESS
from app.identity.limits import client_network
from app.web.blueprint import Blueprint
from app.web.client_request import current_request

device = Blueprint(
    "device",
    guard=KEYLESS,
    url_prefix="/v1/device",
    description="Claiming of an agent by its owner, with the agent's claim code.",
)


@device.get("/info")
@device.arguments(CodeQuery, location="query")
@device.response(200, CodeInfoResponse)
@device.raises(NotFound)
def describe_claim_code(query: dict[str, Any]) -> ActiveClaimCode:
    """Return the agent of a claim code. Wrong codes are counted; too many are refused."""
    return service.describe(_find_code(query["code"]), network=client_network(current_request().remote_addr))


@device.post("/claim")
@device.arguments(ClaimRequest)
@device.response(200, ClaimResponse)
@device.raises(NotFound, EmailMismatch, AlreadyClaimed)
def claim_agent(body: dict[str, Any]) -> service.ClaimedAgent:
    """Claim an agent. The same code and email within 24 hours return the response again, without `ownerKey`.

    With the `claimReceipt` of the first response, a repeated one includes `ownerKey`. A repeated claim is refused after
    20 repetitions, and once the owner has signed in with the key or changed something. The owner can see each one.
    """
    return service.claim_agent(
        _find_code(body["code"]),
        email=body["email"],
        receipt=body["claim_receipt"],
        network=client_network(current_request().remote_addr),
    )


def _find_code(code: str) -> str:
    if not code.strip():
        raise InvalidInput.field("code", "is required")
    return code
