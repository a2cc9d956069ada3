"""Wire schemas of registration."""

from marshmallow import fields

from app.wallets.api.schemas import Addresses
from app.web.fields import Email, Instant, Name, Usd
from app.web.schemas import Schema


class RegisterRequest(Schema):
    """Both fields are optional; null and blank count as absent."""

    name = Name(load_default=None, allow_none=True)
    email = Email(
        load_default=None,
        allow_none=True,
        metadata={"description": "The owner's address: the agent can then be claimed with this address only."},
    )


class AgentAddresses(Addresses):
    """A wallet's addresses; the EVM address is the same on every EVM chain."""


class RegisteredWallet(Schema):
    """The wallet of a new agent."""

    id = fields.String(required=True)
    name = fields.String(required=True)
    addresses = fields.Nested(AgentAddresses, required=True)


class RegisterResponse(Schema):
    """The new agent. Its key and claim code are never shown again."""

    agent_id = fields.String(required=True, data_key="agentId")
    api_key = fields.String(required=True, data_key="apiKey")
    claim_code = fields.String(required=True, data_key="claimCode")
    verification_uri = fields.String(required=True, data_key="verificationUri")
    expires_in = fields.Integer(required=True, data_key="expiresIn")
    wallet = fields.Nested(RegisteredWallet, required=True)


class ClaimCodeResponse(Schema):
    """The new claim code."""

    agent_id = fields.String(required=True, data_key="agentId")
    claim_code = fields.String(required=True, data_key="claimCode")
    verification_uri = fields.String(required=True, data_key="verificationUri")
    expires_in = fields.Integer(required=True, data_key="expiresIn")


class KeyRequest(Schema):
    """The email address is optional."""

    email = Email(load_default=None, allow_none=True)


class KeyResponse(Schema):
    """A gateway-only key, shown once."""

    id = fields.String(required=True)
    api_key = fields.String(required=True)
    email = fields.String(required=True, allow_none=True)
    credits_usd = Usd(required=True, attribute="granted_nanos")
    created_at = Instant(required=True)
