"""Wire shapes of claiming; the only place with its wire spellings."""

from __future__ import annotations

from marshmallow import fields

from app.agents.schemas import AgentAddresses
from app.web.fields import Email, Instant, Usd
from app.web.schemas import Schema

_CODE = "Four letters, a hyphen, four digits; any case and punctuation."


class CodeQuery(Schema):
    """The code to look up."""

    code = fields.String(required=True, metadata={"description": _CODE})


class CodeInfoResponse(Schema):
    """What a claim code stands for."""

    agent_id = fields.String(required=True, data_key="agentId")
    agent_name = fields.String(required=True, data_key="agentName")
    email_required = fields.Boolean(
        required=True,
        data_key="emailRequired",
        metadata={"description": "The claim must name the e-mail that the agent was registered with."},
    )
    expires_at = Instant(required=True, data_key="expiresAt")
    claimed = fields.Boolean(required=True, metadata={"description": "The code was used."})


class ClaimRequest(Schema):
    """The code, and the e-mail where the agent was registered with one."""

    code = fields.String(required=True, metadata={"description": _CODE})
    email = Email(load_default=None, allow_none=True)


class ClaimedControls(Schema):
    """The wallet's spending controls."""

    daily_limit_usd = Usd(required=True, attribute="daily_limit_nanos")
    weekly_limit_usd = Usd(required=True, attribute="weekly_limit_nanos")
    monthly_limit_usd = Usd(required=True, attribute="monthly_limit_nanos")
    per_tx_limit_usd = Usd(required=True, attribute="per_tx_limit_nanos")
    allowed_addresses = fields.List(fields.String(), required=True)
    allowed_domains = fields.List(fields.String(), required=True)
    updated_at = Instant(required=True)


class ClaimedWallet(Schema):
    """The agent's first wallet."""

    id = fields.String(required=True)
    name = fields.String(required=True)
    addresses = fields.Nested(AgentAddresses, required=True)
    spending_controls = fields.Nested(ClaimedControls, required=True, allow_none=True)


class ClaimResponse(Schema):
    """The whole agent, with its key and the owner's."""

    agent_id = fields.String(required=True, data_key="agentId")
    name = fields.String(required=True)
    email = fields.String(required=True, allow_none=True)
    api_key = fields.String(
        required=True, data_key="apiKey", metadata={"description": "The agent's key, `ak_…`."}
    )
    credits_usd = Usd(required=True, attribute="credits_nanos")
    created_at = Instant(required=True)
    claimed_at = Instant(required=True)
    owner_key = fields.String(
        required=True,
        data_key="ownerKey",
        metadata={"description": "`ok_…`: signs the owner in from now on; shown once."},
    )
    wallet = fields.Nested(ClaimedWallet, required=True, allow_none=True)
