"""Requests and responses of platform administration; the only place with its JSON names."""

from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.agents.schemas import PER_MINUTE, RegisteredWallet
from app.audit_log.trail import AuditAction
from app.identity import guards
from app.identity.api_keys import mask_key
from app.identity.principal import MasterKeyRole
from app.platform.agents.fleet import MAX_AGENTS
from app.usage.routes import FocusQuery, UsageSumsQuery
from app.wallets.api.schemas import ControlsBody, NewAgentControls, SpendingWindowShape, WalletShape
from app.web.fields import Email, Identifier, Instant, Name, QueryCount, StrictBoolean, Text, Usd, WholeNumber, one_of
from app.web.schemas import FollowingQuery, PageQuery, Pagination, Schema, page_schema

_SEARCH = "A part of a name or email address, or a wallet's address, or the id of an agent or wallet."
_FROZEN = "Only agents that are frozen, or only those that are not."
_USAGE: Any = {
    f"usage_{window}": fields.Nested(SpendingWindowShape, required=True, attribute=f"spending_status.{window}")
    for window in ("today", "week", "month")
}
_CLAIMED = "Only agents that an owner has claimed, or only those that none has."
_ACTORS = ["master_key", "owner", "command", "worker", "anonymous"]
_AGENTS = ma.validate.Length(1, MAX_AGENTS, error=f"must name 1 to {MAX_AGENTS} agents")
_MAX_GRACE_SECONDS = 30 * 24 * 3600


class ListedKey(fields.String):
    """A key that only an admin's master key is shown whole."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        shown = value if value is None or guards.current_master_key().sees_keys else mask_key(value)
        return super()._serialize(shown, attr, obj, **kwargs)


class NewAgentBody(Schema):
    """A new agent; every field is optional, and null is the default."""

    name = Name(load_default=None, allow_none=True, metadata={"example": "fleet-7"})
    credits_usd = Usd(load_default=None, allow_none=True, attribute="credits_nanos", metadata={"example": 25})
    daily_limit_usd = Usd(load_default=None, allow_none=True, attribute="daily_limit_nanos", metadata={"example": 100})
    weekly_limit_usd = Usd(load_default=None, allow_none=True, attribute="weekly_limit_nanos")
    monthly_limit_usd = Usd(load_default=None, allow_none=True, attribute="monthly_limit_nanos")
    per_tx_limit_usd = Usd(load_default=None, allow_none=True, attribute="per_tx_limit_nanos", metadata={"example": 50})


class NewAgentShape(Schema):
    """An agent that an operator created."""

    agent_id = fields.UUID(required=True, data_key="agentId", attribute="id")
    api_key = fields.String(required=True, data_key="apiKey")
    name = fields.String(required=True)
    email = fields.String(required=True, allow_none=True)
    credits_usd = Usd(required=True, attribute="credits_nanos")
    wallet = fields.Nested(RegisteredWallet, required=True, allow_none=True)
    spending_controls = fields.Nested(NewAgentControls, required=True, allow_none=True)
    created_at = Instant(required=True)


class AgentQuery(FollowingQuery):  # type: ignore[misc, valid-type]
    """Filters of agents."""

    search = Text(load_default="", metadata={"description": _SEARCH, "default": ""})
    frozen = fields.Boolean(load_default=None, metadata={"description": _FROZEN})
    claimed = fields.Boolean(load_default=None, metadata={"description": _CLAIMED})


class UsageDaysQuery(Schema):
    """The days to sum."""

    days = QueryCount(
        load_default=7,
        validate=ma.validate.Range(1, 92, error="must be between 1 and 92"),
        metadata={"description": "UTC days up to today, at most 92.", "default": 7},
    )
    agent_id = Identifier(load_default=None)


AllFocusQuery = FocusQuery.from_dict({"agent_id": Identifier(load_default=None)})
"""The calls of one agent, or of all."""

AllUsageSumsQuery = UsageSumsQuery.from_dict({"agent_id": Identifier(load_default=None)})
"""What to sum, of one agent or all."""


class UsageDayShape(Schema):
    """The calls to one provider on one day."""

    day = fields.Date(required=True)
    provider = fields.String(required=True)
    calls = fields.Integer(required=True)
    cost_usd = Usd(required=True, attribute="cost_nanos")


class UsageDays(Schema):
    """Calls by day and provider."""

    days = fields.List(fields.Nested(UsageDayShape), required=True)


class ListedAgent(Schema):
    """A listed agent; `wallet` is its first one."""

    id = fields.UUID(required=True)
    name = fields.String(required=True)
    api_key = ListedKey(required=True, data_key="apiKey", allow_none=True)
    email = fields.String(required=True, allow_none=True)
    credits_usd = Usd(required=True, attribute="credits_nanos")
    total_spent = Usd(required=True, attribute="spent_nanos")
    wallet = fields.Nested(RegisteredWallet, required=True, allow_none=True)
    frozen = fields.Boolean(required=True, attribute="is_frozen")
    claimed_at = Instant(required=True, allow_none=True)
    created_at = Instant(required=True)


ListedAgents = page_schema("ListedAgents", "agents", ListedAgent, "A page of agents, oldest first.")


class ShownAgent(ListedAgent):
    """An agent with all its wallets."""

    owed_usd = Usd(required=True, attribute="owed_nanos")
    frozen_at = Instant(required=True, allow_none=True)
    claimed_email = fields.String(required=True, allow_none=True)
    rpm = fields.Integer(required=True, allow_none=True, attribute="requests_per_minute")
    wallets = fields.List(fields.Nested(WalletShape.from_dict(_USAGE, name="WatchedWallet")), required=True)


class AgentBody(Schema):
    """The fields to change; a null or blank `email` removes it."""

    name = Name(allow_none=True)
    email = Email(allow_none=True)
    rpm = WholeNumber(allow_none=True, attribute="requests_per_minute", validate=PER_MINUTE, metadata={"example": 1200})


class ChangedAgent(Schema):
    """An agent after a change."""

    id = fields.UUID(required=True)
    name = fields.String(required=True)
    email = fields.String(required=True, allow_none=True)
    rpm = fields.Integer(required=True, allow_none=True, attribute="requests_per_minute")
    updated = fields.Boolean(required=True)


class RemovedAgent(Schema):
    """An agent that was deleted."""

    id = fields.UUID(required=True)
    deleted = fields.Boolean(required=True)


PERSONAL_DATA = {"type": "object", "description": "Rows by table in `tables`; a truncated export is not valid JSON."}


class ErasedData(Schema):
    """How many rows of each table were erased."""

    rows = fields.Dict(keys=fields.String(), values=fields.Integer(), required=True)


class RotationBody(Schema):
    """The grace period of older keys."""

    grace_seconds = QueryCount(
        load_default=0,
        validate=ma.validate.Range(0, _MAX_GRACE_SECONDS, error=f"must be between 0 and {_MAX_GRACE_SECONDS}"),
        metadata={"description": f"0 (immediately) to {_MAX_GRACE_SECONDS} (30 days).", "default": 0},
    )


class RotatedKey(Schema):
    """The agent's new key."""

    agent_id = fields.UUID(required=True, data_key="agentId")
    api_key = fields.String(required=True, data_key="apiKey")
    rotated_at = Instant(required=True)
    previous_key_valid_until = Instant(required=True, attribute="older_until")


class GrantBody(Schema):
    """The amount to grant."""

    credits_usd = Usd(required=True, attribute="credits_nanos", metadata={"example": 25})

    @ma.validates("credits_usd")
    def _assert_positive(self, value: int, **_kwargs: object) -> None:
        if value == 0:
            raise ma.ValidationError("must be greater than 0")


class CreditGrantShape(Schema):
    """The granted amount, and the current credits."""

    agent_id = fields.UUID(required=True, data_key="agentId")
    granted_usd = Usd(required=True, attribute="granted_nanos")
    credits_usd = Usd(required=True, attribute="credits_nanos")


class FreezeBody(Schema):
    """What else is stopped."""

    block_keys = StrictBoolean(load_default=False, metadata={"default": False})


class AgentFreezeShape(Schema):
    """Whether an agent is frozen, and since when."""

    agent_id = fields.UUID(required=True, data_key="agentId", attribute="id")
    frozen = fields.Boolean(required=True, attribute="is_frozen")
    frozen_at = Instant(required=True, allow_none=True)


class RevokedClaimCode(Schema):
    """`revoked` is true if there was an open code."""

    agent_id = fields.UUID(required=True, data_key="agentId")
    revoked = fields.Boolean(required=True)


class OwnerRecovery(Schema):
    """A recovery. `code` is null until the waiting time is over."""

    agent_id = fields.UUID(required=True, data_key="agentId")
    usable_from, expires_at = Instant(required=True), Instant(required=True)
    code = fields.String(required=True, allow_none=True)


class PlatformControlsBody(ControlsBody):
    """The limits to set; omitted fields keep their values. The agent's key can only tighten locked ones."""

    locked = StrictBoolean()


class AgentControls(Schema):
    """An agent's wallets after their controls were set."""

    agent_id = fields.UUID(required=True, data_key="agentId")
    wallets = fields.List(fields.Nested(WalletShape), required=True)
    updated = fields.Boolean(required=True)


class FleetBody(PlatformControlsBody):
    """Controls for the agents in `agent_ids`, or with `all` for every agent."""

    agent_ids = fields.List(Text(), load_default=None, validate=_AGENTS)
    all = StrictBoolean(load_default=False)
    after = Identifier(load_default=None, allow_none=True)

    @ma.validates_schema(skip_on_field_errors=True)
    def _assert_one_target(self, values: dict[str, Any], **_kwargs: object) -> None:
        if (values["agent_ids"] is not None) == values["all"]:
            raise ma.ValidationError("must be given unless `all` is true, but not both", "agent_ids")


class FleetFailure(Schema):
    """An agent with unchanged controls, and the reason."""

    agent_id = fields.String(required=True, data_key="agentId")
    code = fields.String(required=True)
    error = fields.String(required=True)


class FleetResult(Schema):
    """The result for each agent; repeating the call changes only the remaining ones."""

    updated = fields.Boolean(required=True)
    changed = fields.List(fields.UUID(), required=True)
    unchanged = fields.List(fields.UUID(), required=True)
    failed = fields.List(fields.Nested(FleetFailure), required=True)
    next_after = fields.UUID(required=True, allow_none=True)


class MasterKeyBody(Schema):
    """Name and holder of a new master key."""

    name = Name(load_default=None, allow_none=True, metadata={"example": "ops"})
    role = fields.Enum(MasterKeyRole, by_value=fields.String, load_default=MasterKeyRole.ADMIN)
    owner_email = Email(load_default=None, allow_none=True)


class NewMasterKey(Schema):
    """A new master key."""

    id = fields.UUID(required=True)
    key = fields.String(required=True, metadata={"description": "`mk_…`"})
    name = fields.String(required=True)
    role = fields.Enum(MasterKeyRole, by_value=fields.String, required=True)
    owner_email = fields.String(required=True, allow_none=True)
    created_at = Instant(required=True)


class MasterKeyShape(NewMasterKey):
    """A master key; that of a revoked one is truncated, and so are all that another role than an admin reads."""

    key = ListedKey(required=True)
    active = fields.Boolean(required=True)
    revoked_at = Instant(required=True, allow_none=True)


class MasterKeyList(Schema):
    """All master keys, oldest first."""

    master_keys = fields.List(fields.Nested(MasterKeyShape), required=True)
    count = fields.Integer(required=True)


class RevokedKey(Schema):
    """A revoked key."""

    revoked = fields.Boolean(required=True)
    id = fields.UUID(required=True)


class RevokedMasterKey(RevokedKey):
    """A revoked master key, and the webhooks that it had created, if there are any."""

    disabled_webhooks = fields.List(fields.UUID())


class GatewayKeyShape(Schema):
    """A gateway-only key; the key itself is truncated."""

    id = fields.UUID(required=True, attribute="row.id")
    api_key = fields.String(required=True, attribute="key")
    email = fields.String(required=True, allow_none=True, attribute="row.email")
    credits_usd = Usd(required=True, attribute="balance.credits_nanos")
    active = fields.Boolean(required=True)
    created_at = Instant(required=True, attribute="row.created_at")
    revoked_at = Instant(required=True, allow_none=True, attribute="row.revoked_at")


GatewayKeys = page_schema("GatewayKeys", "keys", GatewayKeyShape, "A page of gateway-only keys, oldest first.")


class AuditQuery(PageQuery):  # type: ignore[misc, valid-type]
    """Filters of the audit log."""

    action = one_of((each.value for each in AuditAction), load_default=None)
    subject_id = Identifier(load_default=None, metadata={"description": "The agent, key or wallet of the entry."})
    request_id = Identifier(load_default=None, metadata={"description": "Only those of the request with this id."})


class AuditActor(Schema):
    """The actor; a command or the service itself has no id."""

    kind = fields.String(required=True, attribute="actor_kind", metadata={"enum": _ACTORS})
    id = fields.UUID(required=True, attribute="actor_id", allow_none=True)
    name = fields.String(required=True, attribute="actor_name")


class AuditSubject(Schema):
    """The subject of the act."""

    kind = fields.String(required=True, attribute="subject_kind")
    id = fields.UUID(required=True, attribute="subject_id", allow_none=True)


class AuditEntryShape(Schema):
    """One administrative act, or one reading of keys."""

    number = fields.Integer(required=True)
    id = fields.UUID(required=True)
    at = Instant(required=True)
    actor = fields.Nested(AuditActor, required=True)
    action = fields.String(required=True, metadata={"enum": [each.value for each in AuditAction]})
    subject = fields.Nested(AuditSubject, required=True)
    before = fields.Dict(required=True, allow_none=True)
    after = fields.Dict(required=True, allow_none=True)
    request_id = fields.String(required=True, allow_none=True)
    client_address = fields.String(required=True, allow_none=True)
    hash = fields.String(required=True)

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Read the actor and the subject from the entry itself."""
        return obj if attr in {"actor", "subject"} else super().get_attribute(obj, attr, default)


class AuditHeadShape(Schema):
    """The end of the trail. Recorded outside the service, it lets `flask audit verify --expect` verify the trail."""

    number = fields.Integer(required=True)
    hash = fields.String(required=True)


class AuditPage(Schema):
    """A page of the trail, the newest entry first."""

    entries = fields.List(fields.Nested(AuditEntryShape), required=True)
    pagination = fields.Nested(Pagination, required=True)
    head = fields.Nested(AuditHeadShape, required=True)
