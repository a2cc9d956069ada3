"""Wire schemas of claiming."""

from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.agents.schemas import RegisteredWallet
from app.wallets.api.schemas import ClaimedControls
from app.web.fields import Email, Instant, Text, Usd
from app.web.schemas import Schema

_CODE = "Four letters, a hyphen, four digits; any case and punctuation."


class CodeQuery(Schema):
    """The code to look up."""

    code = fields.String(required=True, metadata={"description": _CODE})


class CodeInfoResponse(Schema):
    """The agent of a claim code."""

    agent_id = fields.String(required=True, data_key="agentId")
    agent_name = fields.String(required=True, data_key="agentName")
    email_required = fields.Boolean(
        required=True,
        data_key="emailRequired",
        attribute="is_email_required",
        metadata={"description": "The claim must name the email that the agent was registered with."},
    )
    expires_at = Instant(required=True, data_key="expiresAt")
    claimed = fields.Boolean(required=True, attribute="is_claimed", metadata={"description": "The code was used."})


class ClaimRequest(Schema):
    """The code; the email if the agent was registered with one; the receipt to repeat a claim."""

    code = fields.String(required=True, metadata={"description": _CODE})
    email = Email(load_default=None, allow_none=True)
    claim_receipt = Text(
        data_key="claimReceipt",
        load_default=None,
        allow_none=True,
        validate=ma.validate.Regexp(r"^[!-~]{32,200}$", error="must be 32 to 200 visible ASCII characters"),
        metadata={
            "description": (
                "Optional in a first claim: a random text of your own, with which the claim can be repeated even if "
                "its response is lost. In a repeated claim: the receipt of the first one; without it, the response "
                "has no `ownerKey`."
            )
        },
    )


class ClaimedWallet(RegisteredWallet):
    """The agent's first wallet."""

    spending_controls = fields.Nested(ClaimedControls, required=True, allow_none=True)


class ClaimResponse(Schema):
    """The agent, with its key and the owner's. A repeated response without the receipt omits two fields."""

    agent_id = fields.String(required=True, data_key="agentId")
    name = fields.String(required=True)
    email = fields.String(required=True, allow_none=True)
    api_key = fields.String(required=True, data_key="apiKey", metadata={"description": "The agent's key, `ak_…`."})
    credits_usd = Usd(required=True, attribute="credits_nanos")
    created_at = Instant(required=True)
    claimed_at = Instant(required=True)
    owner_key = fields.String(
        data_key="ownerKey",
        metadata={
            "description": "`ok_…`: the owner key for signing in. Absent from a repeated response without the receipt."
        },
    )
    claim_receipt = fields.String(
        data_key="claimReceipt",
        metadata={
            "description": (
                "Send it with the same code and email to get this response again, within 24 hours and until the owner "
                "first signs in with the key or changes something. Keep it as secret as the owner key."
            )
        },
    )
    wallet = fields.Nested(ClaimedWallet, required=True, allow_none=True)

    @ma.post_dump
    def _omit_secrets(self, answer: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
        withheld = ("ownerKey", "claimReceipt")
        return {name: value for name, value in answer.items() if value is not None or name not in withheld}
