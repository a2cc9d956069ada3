"""Wire schemas of registration."""

from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.core import clock
from app.identity.principal import BudgetPeriod
from app.wallets.api.schemas import Addresses
from app.web.fields import Email, Instant, Moment, Name, Text, Usd, WholeNumber
from app.web.schemas import Schema, page_schema

PER_MINUTE = ma.validate.Range(min=1, max=10**6, error="must be between 1 and 1000000")
_MODEL = ma.validate.Regexp(r"^[!-~]{1,200}$", error="must be 1 to 200 visible ASCII characters")
_MODELS = ma.validate.Length(max=100, error="must have at most 100 entries")
_TAGS = ma.validate.Length(max=20, error="must have at most 20 entries")
_MAX_TAG_CHARS = 50
_OWNERS = {"description": "The owner's address: the agent can then be claimed with this address only."}


class Tag(Name):
    """A label of 1 to 50 characters."""

    def _parse(self, value: Any) -> Any:
        tag = super()._parse(value)
        if tag is None or len(tag) > _MAX_TAG_CHARS:
            raise ma.ValidationError(f"must have 1 to {_MAX_TAG_CHARS} characters")
        return tag


class RegisterRequest(Schema):
    """Both fields are optional; null and blank count as absent."""

    name = Name(load_default=None, allow_none=True)
    email = Email(load_default=None, allow_none=True, metadata=_OWNERS)


class RegisteredWallet(Schema):
    """The wallet of a new agent."""

    id = fields.String(required=True)
    name = fields.String(required=True)
    addresses = fields.Nested(Addresses, required=True)


class ClaimCodeResponse(Schema):
    """The new claim code."""

    agent_id = fields.String(required=True, data_key="agentId")
    claim_code = fields.String(required=True, data_key="claimCode")
    verification_uri = fields.String(required=True, data_key="verificationUri")
    expires_in = fields.Integer(required=True, data_key="expiresIn")


class RegisterResponse(ClaimCodeResponse):
    """The new agent. Its key and claim code are never shown again."""

    api_key = fields.String(required=True, data_key="apiKey")
    wallet = fields.Nested(RegisteredWallet, required=True)


class KeyChanges(Schema):
    """The limits of a key; omitted ones stay as they are, null is no limit."""

    name = Name(allow_none=True, metadata={"example": "research"})
    tags = fields.List(Tag(), validate=_TAGS, metadata={"example": ["team-a"]})
    limit_usd = Usd(allow_none=True, attribute="limit_nanos", metadata={"example": 5})
    models = fields.List(Text(validate=_MODEL), validate=_MODELS, metadata={"example": ["openai/gpt-5*", "brave"]})
    rpm = WholeNumber(allow_none=True, attribute="requests_per_minute", validate=PER_MINUTE, metadata={"example": 60})
    tpm = WholeNumber(
        allow_none=True, attribute="tokens_per_minute", validate=PER_MINUTE, metadata={"example": 100_000}
    )
    expires_at = Moment(allow_none=True, metadata={"format": "date-time"})

    @ma.validates("expires_at")
    def _is_later(self, moment: Any, **_: Any) -> None:
        if moment is not None and moment <= clock.now():
            raise ma.ValidationError("must be in the future")


class KeyRequest(KeyChanges):
    """All fields are optional: limits of an agent's further key, or the email address for a key without an agent."""

    email = Email(load_default=None, allow_none=True)
    window = fields.Enum(BudgetPeriod, by_value=True, attribute="period", metadata={"type": "string", "example": "day"})


class LimitedKeyShape(Schema):
    """A further key of an agent, masked, with its limits."""

    id = fields.UUID(required=True)
    key = fields.String(required=True)
    name = fields.String(required=True, allow_none=True)
    tags = fields.List(fields.String(), required=True)
    limit_usd = Usd(required=True, allow_none=True, attribute="limit_nanos")
    window = fields.Enum(BudgetPeriod, by_value=True, required=True, attribute="period", metadata={"type": "string"})
    used_usd = Usd(required=True, attribute="used_nanos")
    remaining_usd = Usd(required=True, allow_none=True, attribute="remaining_nanos")
    resets_at = Instant(required=True, allow_none=True)
    models = fields.List(fields.String(), required=True)
    rpm = fields.Integer(required=True, allow_none=True, attribute="requests_per_minute")
    tpm = fields.Integer(required=True, allow_none=True, attribute="tokens_per_minute")
    expires_at = Instant(required=True, allow_none=True)
    revoked_at = Instant(required=True, allow_none=True)
    created_at = Instant(required=True)


LimitedKeyPage = page_schema("LimitedKeyPage", "keys", LimitedKeyShape, "A page of keys with limits, oldest first.")


class KeyResponse(Schema):
    """A new key; its text is shown once."""

    id = fields.String(required=True)
    api_key = fields.String(required=True)
    email = fields.String(required=True, allow_none=True)
    credits_usd = Usd(required=True, attribute="granted_nanos")
    limits = fields.Nested(LimitedKeyShape)
    created_at = Instant(required=True)
