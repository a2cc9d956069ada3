"""The routes of registration, gateway-only keys and claim codes."""

from typing import Any

from app.agents import claims, service
from app.agents.schemas import ClaimCodeResponse, KeyRequest, KeyResponse, RegisterRequest, RegisterResponse
from app.errors import AlreadyClaimed
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity.guards import AGENT_KEY, REGISTRATION, require_agent
from app.state import app_state
from app.web.blueprint import Blueprint

registration = Blueprint(
    "registration", guard=REGISTRATION, url_prefix="/v1", description="Agents register themselves, without a key."
)
keys = Blueprint("keys", guard=REGISTRATION, url_prefix="/v1", description="Gateway-only keys, issued without a key.")
agents = Blueprint("agents", guard=AGENT_KEY, url_prefix="/v1/agents", description="The agent's own administration.")


@registration.post("/agents/register")
@registration.arguments(RegisterRequest, required=False)
@registration.response(201, RegisterResponse)
def register(body: dict[str, Any]) -> dict[str, Any]:
    """Register an agent: a key with credits, a wallet on three chains under limits, a claim code."""
    made = service.register(name=body["name"], email=body["email"])
    return {"agent_id": made.agent_id, "api_key": made.api_key, "wallet": made.wallet, **_claim_code(made.claim_code)}


@keys.post("/keys")
@keys.arguments(KeyRequest, required=False)
@keys.response(201, KeyResponse)
def create_gateway_key(body: dict[str, Any]) -> service.IssuedGatewayKey:
    """Issue a gateway-only key with its own credits; it owns no wallets."""
    return service.issue_gateway_key(email=body["email"])


def _replace_claim_code(agent_id: str, claim: Claim) -> dict[str, Any]:
    code = service.replace_claim_code(agent_id, claim=claim)
    return {"agent_id": agent_id, **_claim_code(code)}


@agents.post("/claim-code")
@idempotent(
    owner=require_agent,
    rebuild=lambda agent_id: _replace_claim_code(agent_id, Claim.none()),
    note="The same key within 24 hours returns the same code.",
    pattern="^[!-~]{1,255}$",
)
@agents.response(201, ClaimCodeResponse)
@agents.raises(AlreadyClaimed)
def replace_claim_code(claim: Claim) -> dict[str, Any]:
    """Replace an unused claim code; the previous one becomes invalid."""
    return _replace_claim_code(require_agent(), claim)


def _claim_code(code: str) -> dict[str, Any]:
    return {
        "claim_code": code,
        "verification_uri": f"{app_state().settings.public_url}/device?code={code}",
        "expires_in": int(claims.CODE_LIFETIME.total_seconds()),
    }
