"""The doors of registration. Every answer holds a secret and is kept out of caches."""

from __future__ import annotations

from typing import Any

from flask import Response

from app.agents import claim_codes, service
from app.agents.schemas import (
    ClaimCodeResponse,
    KeyRequest,
    KeyResponse,
    RegisterRequest,
    RegisterResponse,
)
from app.errors import AlreadyClaimed, IdempotencyConflict, Unauthorized
from app.identity import limits
from app.identity.guards import AGENT_KEY, require_agent
from app.ports import provider
from app.web.blueprint import OPEN, Blueprint
from app.web.idempotency import HEADER, idempotent

registration = Blueprint(
    "registration",
    __name__,
    guard=OPEN,
    url_prefix="/v1",
    description="Agents register themselves, without a key.",
)
keys = Blueprint(
    "keys", __name__, guard=OPEN, url_prefix="/v1", description="Gateway-only keys, handed out without a key."
)
agents = Blueprint(
    "agents",
    __name__,
    guard=AGENT_KEY,
    url_prefix="/v1/agents",
    description="What an agent does about itself.",
)


@registration.after_request
@keys.after_request
@agents.after_request
def _keep_out_of_caches(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


@registration.post("/agents/register")
@registration.arguments(RegisterRequest, required=False)
@registration.response(201, RegisterResponse)
def register_agent(body: dict[str, Any]) -> dict[str, Any]:
    """Register an agent: a key with credits, a wallet on three chains under limits, a claim code."""
    limits.count_registration()
    made = service.register(name=body["name"], email=body["email"])
    return {
        "agent_id": made.agent_id,
        "api_key": made.api_key,
        "wallet": made.wallet,
        **_claim_code(made.claim_code),
    }


@keys.post("/keys")
@keys.arguments(KeyRequest, required=False)
@keys.response(201, KeyResponse)
def create_gateway_key(body: dict[str, Any]) -> service.GatewayKey:
    """Hand out a gateway-only key with credits of its own; it owns no wallets."""
    limits.count_registration()
    return service.issue_gateway_key(email=body["email"])


def _replace_again(agent_id: str) -> tuple[int, dict[str, Any]]:
    code = service.replace_claim_code(agent_id)
    return 201, ClaimCodeResponse().dump({"agent_id": agent_id, **_claim_code(code)})


@agents.post("/claim-code")
@agents.header(HEADER, "The same key within 24 hours gets the same code.", pattern="^[!-~]{1,255}$")
@idempotent(owner=require_agent, rebuild=_replace_again)
@agents.response(201, ClaimCodeResponse)
@agents.raises(Unauthorized, AlreadyClaimed, IdempotencyConflict)
def replace_claim_code() -> dict[str, Any]:
    """Replace the claim code that nobody has used yet; the one before is worthless from then on."""
    agent_id = require_agent()
    return {"agent_id": agent_id, **_claim_code(service.replace_claim_code(agent_id))}


def _claim_code(code: str) -> dict[str, Any]:
    return {
        "claim_code": code,
        "verification_uri": f"{provider.settings().public_url}/device?code={code}",
        "expires_in": int(claim_codes.VALID_FOR.total_seconds()),
    }
