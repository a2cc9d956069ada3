"""The routes of registration, keys and claim codes."""

from typing import Any

from app.agents import claims, schemas, service
from app.agents import keys as agent_keys
from app.audit_log.actors import current_actor
from app.core.pagination import Page
from app.errors import AlreadyClaimed, InvalidInput, KeyServiceUnavailable, LimitReached
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.identity.api_keys import LimitedKey
from app.identity.guards import require_agent
from app.state import app_state
from app.web.blueprint import Blueprint
from app.web.schemas import PageQuery, assert_any_field

registration = Blueprint("registration", guard=guards.REGISTRATION, url_prefix="/v1")
agents = Blueprint("agents", guard=guards.AGENT_KEY, url_prefix="/v1/agents")
keys = Blueprint("keys", guard=guards.KEY_OR_REGISTRATION, url_prefix="/v1")
agent_keys_blueprint = Blueprint("agent_keys", guard=guards.AGENT_KEY, url_prefix="/v1/keys")


@registration.post("/agents/register")
@registration.arguments(schemas.RegisterRequest, required=False)
@registration.response(201, schemas.RegisterResponse)
@registration.raises(KeyServiceUnavailable)
def register(body: dict[str, Any]) -> dict[str, Any]:
    """Register an agent: a key with credits, a wallet on three chains under limits, a claim code."""
    made = service.register(name=body["name"], email=body["email"])
    return {"agent_id": made.agent_id, "api_key": made.api_key, "wallet": made.wallet, **_claim_code(made.claim_code)}


def issued_key(key: LimitedKey, text: str) -> dict[str, Any]:
    """Return the fields of a new key, with its text."""
    shown = {"id": key.id, "api_key": text, "email": key.email, "created_at": key.created_at}
    return {**shown, "granted_nanos": 0, "limits": key}


@keys.post("/keys")
@idempotent(
    owner=require_agent,
    applies=lambda: guards.find_principal() is not None,
    rebuild=lambda key_id: issued_key(*agent_keys.reveal(require_agent(), key_id)),
    note="For the key of an agent: the same `Idempotency-Key` within 24 hours returns the same key.",
)
@keys.arguments(schemas.KeyRequest, required=False)
@keys.response(201, schemas.KeyResponse)
@keys.raises(LimitReached)
def create_gateway_key(body: dict[str, Any], claim: Claim) -> Any:
    """Issue a gateway-only key with its own credits, or, with an agent's key, a further key that spends the agent's."""
    if caller := guards.find_principal():
        return issued_key(*agent_keys.create(current_actor(), require_agent(), body, claim=claim, caller=caller))
    email = body.pop("email")
    if body:
        raise InvalidInput("Limits are for the further key of an agent: send the agent's X-API-Key.")
    return service.issue_gateway_key(email=email)


@agent_keys_blueprint.get("")
@agent_keys_blueprint.arguments(PageQuery, location="query")
@agent_keys_blueprint.response(200, schemas.LimitedKeyPage)
def list_keys(query: dict[str, Any]) -> Page[LimitedKey]:
    """List the agent's further keys, oldest first, with what is left of their budgets."""
    return agent_keys.list_keys(require_agent(), query["page"])


@agent_keys_blueprint.get("/<string:key_id>")
@agent_keys_blueprint.response(200, schemas.LimitedKeyShape)
def get_key(key_id: str) -> LimitedKey:
    """Read a further key, and what is left of its budget."""
    return agent_keys.get(require_agent(), key_id)


@agent_keys_blueprint.patch("/<string:key_id>")
@agent_keys_blueprint.arguments(schemas.KeyChanges)
@agent_keys_blueprint.response(200, schemas.LimitedKeyShape)
def change_key(body: dict[str, Any], key_id: str) -> LimitedKey:
    """Change the limits of a further key; they apply from its next call on."""
    assert_any_field(body, schemas.KeyChanges)
    return agent_keys.change(current_actor(), require_agent(), key_id, body, caller=guards.current_principal())


@agent_keys_blueprint.delete("/<string:key_id>")
@agent_keys_blueprint.response(200, schemas.LimitedKeyShape)
def revoke_key(key_id: str) -> LimitedKey:
    """Revoke a further key; calls that run are finished and charged."""
    return agent_keys.revoke(current_actor(), require_agent(), key_id)


def _replace_claim_code(agent_id: str, claim: Claim) -> dict[str, Any]:
    return {"agent_id": agent_id, **_claim_code(service.replace_claim_code(agent_id, claim=claim))}


@agents.post("/claim-code")
@idempotent(
    owner=require_agent,
    rebuild=lambda agent_id: _replace_claim_code(agent_id, Claim.none()),
    note="The same key within 24 hours returns the same code.",
    pattern="^[!-~]{1,255}$",
)
@agents.response(201, schemas.ClaimCodeResponse)
@agents.raises(AlreadyClaimed)
def replace_claim_code(claim: Claim) -> dict[str, Any]:
    """Replace an unused claim code; the previous one becomes invalid."""
    return _replace_claim_code(require_agent(), claim)


def _claim_code(code: str) -> dict[str, Any]:
    uri, seconds = f"{app_state().settings.public_url}/device?code={code}", int(claims.CODE_LIFETIME.total_seconds())
    return {"claim_code": code, "verification_uri": uri, "expires_in": seconds}
