"""The JSON routes of claiming, with their schemas; they need a claim code and no key."""

from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.agents.claims import ClaimCode
from app.agents.schemas import RegisteredWallet
from app.device import service
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound
from app.identity.guards import KEYLESS
from app.identity.limits import client_network
from app.wallets.api.schemas import ClaimedControls
from app.web.blueprint import Blueprint
from app.web.client_request import current_request
from app.web.fields import Email, Instant, Text, Usd
from app.web.schemas import Schema

device = Blueprint("device", guard=KEYLESS, url_prefix="/v1/device")
_RECEIPT = ma.validate.Regexp(r"^[!-~]{32,200}$", error="must be 32 to 200 visible ASCII characters")
_CODE = "Four letters, a hyphen, four digits; any case and punctuation."


CodeQuery = Schema.from_dict({"code": fields.String(required=True, metadata={"description": _CODE})})


class CodeInfoResponse(Schema):
    """The agent of a claim code."""

    agent_id = fields.String(required=True, data_key="agentId")
    agent_name = fields.String(required=True, data_key="agentName", attribute="agent.name")
    email_required = fields.Boolean(required=True, data_key="emailRequired", attribute="is_email_required")
    expires_at = Instant(required=True, data_key="expiresAt")
    claimed = fields.Boolean(required=True, attribute="is_claimed")


class ClaimRequest(Schema):
    """The code; the email if the agent was registered with one; the receipt to repeat a claim."""

    code = fields.String(required=True, metadata={"description": _CODE})
    email = Email(load_default=None, allow_none=True)
    claim_receipt = Text(data_key="claimReceipt", load_default=None, allow_none=True, validate=_RECEIPT)


class ClaimedWallet(RegisteredWallet):
    """The agent's first wallet."""

    spending_controls = fields.Nested(ClaimedControls, required=True, allow_none=True)


class ClaimResponse(Schema):
    """The agent, with its key and the owner's. A repeated response without the receipt omits two fields."""

    agent_id = fields.String(required=True, data_key="agentId", attribute="agent.id")
    name = fields.String(required=True, attribute="agent.name")
    email = fields.String(required=True, allow_none=True)
    api_key = fields.String(required=True, data_key="apiKey")
    credits_usd = Usd(required=True, attribute="credits_nanos")
    created_at = Instant(required=True, attribute="agent.created_at")
    claimed_at = Instant(required=True)
    owner_key = fields.String(data_key="ownerKey")
    claim_receipt = fields.String(data_key="claimReceipt")
    wallet = fields.Nested(ClaimedWallet, required=True, allow_none=True)

    @ma.post_dump
    def _omit_secrets(self, answer: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
        withheld = ("ownerKey", "claimReceipt")
        return {name: value for name, value in answer.items() if value is not None or name not in withheld}


@device.get("/info")
@device.arguments(CodeQuery, location="query")
@device.response(200, CodeInfoResponse)
@device.raises(NotFound)
def describe_claim_code(query: dict[str, Any]) -> ClaimCode:
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
    code, network = _find_code(body["code"]), client_network(current_request().remote_addr)
    return service.claim_agent(code, email=body["email"], receipt=body["claim_receipt"], network=network)


def _find_code(code: str) -> str:
    if not code.strip():
        raise InvalidInput.field("code", "is required")
    return code
