"""`/v1/platform/agents` and `/v1/platform/controls`: agents and fleets. Answers hold keys and stay out of caches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask import Response

from app.core import identifiers
from app.core.pagination import Page
from app.errors import (
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    TransactionInProgress,
    Unauthorized,
    WalletFrozen,
)
from app.identity import guards
from app.platform import fleet, freezes, schemas, service
from app.platform.actors import of_request
from app.platform.freezes import Freeze
from app.platform.service import AgentView, Grant, Limits, NewKey
from app.spending.service import Changes
from app.web import idempotency
from app.web.blueprint import Blueprint
from app.web.idempotency import idempotent

blp = Blueprint(
    "platform",
    __name__,
    guard=guards.MASTER_KEY,
    url_prefix="/v1/platform",
    description="Administration with a master key: agents, fleets, keys, and the audit trail of it all.",
)
REPEATED = "Repeating a request with the same key answers with the first answer and makes nothing again."


@blp.after_request
def _keep_out_of_caches(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


def acting_key() -> str:
    """Return the id of the master key that makes the present request: Idempotency-Keys are its own."""
    return guards.master().key_id


def _note_agent(agent_id: str) -> None:
    service.note_repeated(of_request(), agent_id)


def _note_rotation(entry_id: str) -> None:
    service.note_repeated_rotation(of_request(), entry_id)


def _rebuild_agent(agent_id: str) -> tuple[int, Any]:
    return 201, schemas.NewAgentShape().dump(service.created(agent_id))


def _rebuild_rotation(entry_id: str) -> tuple[int, Any]:
    return 200, schemas.RotatedKey().dump(service.rotated(entry_id))


def _rebuild_grant(entry_id: str) -> tuple[int, Any]:
    return 200, schemas.GrantShape().dump(service.granted(entry_id))


@blp.post("/agents")
@idempotent(owner=acting_key, rebuild=_rebuild_agent, repeated=_note_agent)
@blp.arguments(schemas.NewAgentBody)
@blp.response(201, schemas.NewAgentShape)
@blp.raises(Unauthorized, IdempotencyConflict)
@blp.header(idempotency.HEADER, REPEATED)
def create_agent(body: dict[str, Any]) -> AgentView:
    """Make an agent: a key, credits, and a wallet under limits."""
    name, credits_nanos = body.pop("name"), body.pop("credits_nanos")
    agent_id = service.create(of_request(), name=name, credits_nanos=credits_nanos, limits=Limits(**body))
    return service.created(agent_id)


@blp.get("/agents")
@blp.arguments(schemas.AgentQuery, location="query")
@blp.response(200, schemas.ListedAgents)
@blp.raises(Unauthorized)
def list_agents(query: dict[str, Any]) -> Page[AgentView]:
    """List agents with their keys, the oldest first; that they were shown is noted."""
    return service.show_all(of_request(), query["page"])


@blp.get("/agents/<string:agent_id>")
@blp.response(200, schemas.ShownAgent)
@blp.raises(Unauthorized, NotFound)
def get_agent(agent_id: str) -> AgentView:
    """Read one agent with its key and all its wallets; that it was shown is noted."""
    return service.show(of_request(), agent_id)


@blp.patch("/agents/<string:agent_id>")
@blp.arguments(schemas.AgentBody)
@blp.response(200, schemas.ChangedAgent)
@blp.raises(Unauthorized, NotFound)
def change_agent(body: dict[str, Any], agent_id: str) -> dict[str, Any]:
    """Give an agent another name or owner's e-mail address."""
    changes = {name: value for name, value in body.items() if name == "email" or value}
    if not changes:
        raise InvalidInput(
            "Send at least one of name, email.", details={"fields": {"body": ["has no field to set"]}}
        )
    agent = service.change(of_request(), agent_id, changes)
    return {"id": agent.id, "name": agent.name, "email": agent.email, "updated": True}


@blp.delete("/agents/<string:agent_id>")
@blp.response(200, schemas.RemovedAgent)
@blp.raises(Unauthorized, NotFound, WalletFrozen, TransactionInProgress)
def delete_agent(agent_id: str) -> dict[str, Any]:
    """Delete an agent with its keys and wallets, for good. Move what they hold out first."""
    return {"id": service.delete(of_request(), agent_id), "deleted": True}


@blp.post("/agents/<string:agent_id>/rotate-key")
@idempotent(owner=acting_key, rebuild=_rebuild_rotation, repeated=_note_rotation)
@blp.arguments(schemas.RotationBody)
@blp.response(200, schemas.RotatedKey)
@blp.raises(Unauthorized, NotFound, IdempotencyConflict)
@blp.header(idempotency.HEADER, REPEATED)
def rotate_agent_key(body: dict[str, Any], agent_id: str) -> NewKey:
    """Give an agent a new key; older ones work until the grace is over. Limits and wallets stay as they are."""
    return service.rotate_key(of_request(), agent_id, grace=timedelta(seconds=body["grace_seconds"]))


@blp.put("/agents/<string:agent_id>/controls")
@blp.arguments(schemas.PlatformControlsBody)
@blp.response(200, schemas.AgentControls)
@blp.raises(Unauthorized, NotFound)
def set_agent_controls(body: dict[str, Any], agent_id: str) -> dict[str, Any]:
    """Set the controls of all wallets of an agent, locked or not; what is left out keeps its value."""
    wallets = fleet.set_controls(of_request(), agent_id, _changes(body))
    return {"agent_id": agent_id, "wallets": wallets, "updated": True}


@blp.put("/controls")
@blp.arguments(schemas.FleetBody)
@blp.response(200, schemas.FleetResult)
@blp.raises(Unauthorized)
def set_fleet_controls(body: dict[str, Any]) -> dict[str, Any]:
    """Set the controls of many agents: each wholly or not at all, at most 10 000 in a call. Safe to repeat."""
    agent_ids, after = body.pop("agent_ids"), body.pop("after")
    body.pop("all")
    changes = _changes(body)
    if agent_ids is None:
        last = None if after is None else identifiers.parse_id(after)
        if after is not None and last is None:
            raise InvalidInput.field("after", "must be the `next_after` of an earlier answer")
        result = fleet.set_controls_of_all(of_request(), changes, after=last)
    else:
        result = fleet.set_controls_of(of_request(), agent_ids, changes)
    return {
        "updated": not result.failed,
        "changed": result.changed,
        "unchanged": result.unchanged,
        "failed": result.failed,
        "next_after": result.next_after,
    }


@blp.post("/agents/<string:agent_id>/credits")
@idempotent(owner=acting_key, rebuild=_rebuild_grant)
@blp.arguments(schemas.GrantBody)
@blp.response(200, schemas.GrantShape)
@blp.raises(Unauthorized, NotFound, IdempotencyConflict)
@blp.header(idempotency.HEADER, REPEATED)
def grant_credits(body: dict[str, Any], agent_id: str) -> Grant:
    """Give an agent credits; they take from no budget. Send an Idempotency-Key: a repetition gives again."""
    return service.grant(of_request(), agent_id, body["credits_nanos"])


@blp.post("/agents/<string:agent_id>/freeze")
@blp.response(200, schemas.FreezeShape)
@blp.raises(Unauthorized, NotFound)
def freeze_agent(agent_id: str) -> Freeze:
    """Freeze an agent with all its wallets, also those to come. What is in flight is finished."""
    return freezes.freeze(of_request(), agent_id)


@blp.post("/agents/<string:agent_id>/unfreeze")
@blp.response(200, schemas.FreezeShape)
@blp.raises(Unauthorized, NotFound)
def unfreeze_agent(agent_id: str) -> Freeze:
    """Let a frozen agent move again."""
    return freezes.unfreeze(of_request(), agent_id)


@blp.delete("/agents/<string:agent_id>/claim-code")
@blp.response(200, schemas.RevokedClaimCode)
@blp.raises(Unauthorized, NotFound)
def revoke_claim_code(agent_id: str) -> dict[str, Any]:
    """Make an agent's open claim code worthless; the agent may ask for another one."""
    return {"agent_id": agent_id, "revoked": service.revoke_claim_code(of_request(), agent_id)}


def _changes(body: dict[str, Any]) -> Changes:
    if not body:
        known = ", ".join(schemas.PlatformControlsBody().fields)
        raise InvalidInput(
            f"Send at least one of {known}.", details={"fields": {"body": ["has no field to set"]}}
        )
    return Changes(**body)
