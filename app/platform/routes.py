"""`/v1/platform`: agents, fleets, keys and the audit log. Responses contain keys and are not cached."""

from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

from flask import Response

from app.agents import claims
from app.agents.claims import CodeKind
from app.approvals import schemas as approval_schemas
from app.approvals import service as approvals
from app.approvals.models import Approval
from app.audit_log import trail, verification
from app.audit_log.actors import current_actor as _actor
from app.audit_log.trail import AuditAction
from app.catalog.models import Payout, Service
from app.catalog.payouts import refunds
from app.catalog.payouts import routes as payout_routes
from app.catalog.payouts import service as payouts
from app.catalog.schemas import AllPayouts, OwnedEntry, PayoutQuery, PayoutShape, RefundBody, WatchedPage
from app.catalog.services import service as services
from app.core import clock, identifiers
from app.core.pagination import Page
from app.db.replica import report_engine
from app.db.unit_of_work import read_only_unit
from app.errors import LimitReached, NotFound, PayoutRefused, SelfRevoke, TransactionInProgress, WalletFrozen
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.identity.master_keys import MasterKeyView
from app.identity.service import AgentSnapshot
from app.platform import keys, margin, personal_data, schemas
from app.platform.agents import fleet, service
from app.platform.agents.fleet import FleetControlsResult
from app.platform.agents.service import AgentKeyRotation, AgentView
from app.platform.lookups import schemas as lookup_schemas
from app.shopping import service as shopping
from app.shopping.routes import shown
from app.spending.controls import ControlsChange
from app.usage import service as usage
from app.usage.routes import FOCUS, FOCUS_EXAMPLE, focus_of
from app.wallets.api.schemas import HistoryQuery, TransactionPage
from app.wallets.views.history import TransactionView
from app.web.blueprint import CSV, Blueprint, json_file, offers_csv
from app.web.schemas import PageQuery, assert_any_field

blp = Blueprint("platform", guard=guards.MASTER_KEY, url_prefix="/v1/platform")
_NOTE = "Repeating a request with the same key returns the first response and creates nothing again."
_idempotent = partial(idempotent, owner=guards.acting_key_id, note=_NOTE)


@blp.post("/agents")
@_idempotent(
    rebuild=service.created_agent,
    on_replay=lambda agent_id: trail.record_alone(_actor(), AuditAction.AGENT_SHOWN, agent_id, repeated=True),
)
@blp.arguments(schemas.NewAgentBody)
@blp.response(201, schemas.NewAgentShape)
def create_agent(body: dict[str, Any], claim: Claim) -> AgentView:
    """Create an agent with an API key, credits, and a wallet with limits."""
    name, credits_nanos = body.pop("name"), body.pop("credits_nanos")
    agent_id = service.create(_actor(), name=name, credits_nanos=credits_nanos, limits=body, claim=claim)
    return service.created_agent(agent_id)


@blp.get("/agents")
@blp.arguments(schemas.AgentQuery, location="query")
@blp.response(200, schemas.ListedAgents)
def list_agents(query: dict[str, Any]) -> Page[AgentView]:
    """List agents with their keys, oldest first. The access is recorded in the audit log."""
    return service.list_agents(_actor(), **query)


@blp.get("/agents/<string:agent_id>")
@blp.response(200, schemas.ShownAgent)
def get_agent(agent_id: str) -> AgentView:
    """Read one agent with its key and all its wallets. The access is recorded in the audit log."""
    return service.get_agent(_actor(), agent_id)


@blp.get("/agents/<string:agent_id>/transactions")
@blp.arguments(HistoryQuery, location="query")
@blp.response(200, TransactionPage)
def list_agent_transactions(query: dict[str, Any], agent_id: str) -> Page[TransactionView]:
    """List the transactions of all wallets of an agent, newest first."""
    return service.list_transactions(agent_id, query.pop("page"), query)


@blp.get("/usage")
@blp.arguments(schemas.UsageDaysQuery, location="query")
@blp.response(200, schemas.UsageDays)
def get_usage_by_day(query: dict[str, Any]) -> dict[str, Any]:
    """Read what gateway and catalog calls were charged, by UTC day and provider, the latest day first."""
    today = clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    start = today - timedelta(days=query["days"] - 1)
    with read_only_unit(report_engine()) as session:
        found = usage.by_day(session, query["agent_id"], start)
    return {"days": sorted(found, key=lambda each: (each.day, each.cost_nanos), reverse=True)}


@blp.get("/usage/sums")
@blp.arguments(schemas.AllUsageSumsQuery, location="query")
@blp.response(200, lookup_schemas.Margins)
@offers_csv(blp, "items", lookup_schemas.MarginShape)
@blp.raises(LimitReached)
def get_all_usage_sums(query: dict[str, Any]) -> Page[dict[str, Any]]:
    """Read what calls of an agent, or of all, cost, and the margin, by day, provider, model, key, tag or agent."""
    with read_only_unit(report_engine()) as session:
        return margin.page_of(session, query.pop("agent_id"), query.pop("group_by"), query.pop("page"), query)


@blp.get("/usage/focus")
@blp.arguments(schemas.AllFocusQuery, location="query")
@blp.response(200, FOCUS, content_type=CSV, example=FOCUS_EXAMPLE)
@blp.raises(LimitReached)
def get_all_usage_as_focus(query: dict[str, Any]) -> Response:
    """Read the costs of an agent, or of all, as CSV in the format of FOCUS 1.2, for tools of cost management."""
    return focus_of(query.pop("agent_id"), query)


@blp.get("/services")
@blp.arguments(PageQuery, location="query")
@blp.response(200, WatchedPage)
def list_all_services(query: dict[str, Any]) -> Page[Service]:
    """List the services of all agents with their last 24 hours, oldest first, without retired ones."""
    return services.list_all(query["page"])


@blp.post("/services/<string:service_id>/pause")
@blp.response(200, OwnedEntry)
def pause_service(service_id: str) -> Service:
    """Stop all calls of a service; its owner cannot resume it."""
    return service.set_service_suspended(_actor(), service_id, suspended=True)


@blp.post("/services/<string:service_id>/resume")
@blp.response(200, OwnedEntry)
def resume_service(service_id: str) -> Service:
    """Permit the calls of a service again, unless its owner has paused it."""
    return service.set_service_suspended(_actor(), service_id, suspended=False)


@blp.get("/payouts")
@blp.arguments(PayoutQuery, location="query")
@blp.response(200, AllPayouts)
@offers_csv(blp, "items", PayoutShape)
def list_all_payouts(query: dict[str, Any]) -> Page[Payout]:
    """List the payouts and refunds of a service, or of all, newest first."""
    service_id = query["service_id"]
    return payouts.list_of(None if service_id is None else str(service_id), query["page"])


@blp.post("/services/<string:service_id>/refunds")
@idempotent(owner=guards.acting_key_id, rebuild=payout_routes.rebuilt, note=payout_routes.NOTE)
@blp.arguments(RefundBody)
@blp.response(201, PayoutShape)
@blp.raises(*payout_routes.REFUND_ERRORS)
def refund_call_of_service(body: dict[str, Any], service_id: str, claim: Claim) -> Payout:
    """Refund a call of any service once, from its earnings, to whom its seller could refund it."""
    made = refunds.of_call(payouts.find_service(service_id), body["call_id"])
    return payout_routes.refund(made, body, claim)


@blp.post("/services/<string:service_id>/write-off")
@_idempotent(rebuild=payout_routes.rebuilt)
@blp.response(201, PayoutShape)
@blp.raises(PayoutRefused)
def write_off_earnings(service_id: str, claim: Claim) -> Payout:
    """Record what a deleted seller has earned as kept by the operator, or paid elsewhere; no money moves."""
    return payouts.write_off(payouts.find_service(service_id), actor=_actor(), claim=claim)


@blp.patch("/agents/<string:agent_id>")
@blp.arguments(schemas.AgentBody)
@blp.response(200, schemas.ChangedAgent)
def change_agent(body: dict[str, Any], agent_id: str) -> dict[str, Any]:
    """Change an agent's name, its owner's email address, or its rate of requests."""
    changes = {name: value for name, value in body.items() if name != "name" or value}
    assert_any_field(changes, schemas.AgentBody)
    agent = service.update(_actor(), agent_id, changes)
    return {**asdict(agent), "updated": True}


@blp.delete("/agents/<string:agent_id>")
@blp.response(200, schemas.RemovedAgent)
@blp.raises(WalletFrozen, TransactionInProgress)
def delete_agent(agent_id: str) -> dict[str, Any]:
    """Delete an agent with its keys and wallets, permanently. First transfer their balances out."""
    return {"id": service.delete(_actor(), agent_id), "deleted": True}


@blp.get("/agents/<string:agent_id>/personal-data")
@blp.response(200, schemas.PERSONAL_DATA, example={"tables": {"agents": [{"name": "Ada"}]}})
def export_personal_data(agent_id: str) -> Response:
    """Export all that is stored about an agent and its owner, without secrets; the audit log records the access."""
    return json_file(personal_data.export(_actor(), agent_id), "personal-data")


@blp.delete("/agents/<string:agent_id>/personal-data")
@blp.response(200, schemas.ErasedData)
@blp.raises(TransactionInProgress)
def erase_personal_data(agent_id: str) -> dict[str, Any]:
    """Erase the personal data of an agent's owner. The agent stays, with its wallets, limits and credits."""
    return {"rows": personal_data.erase(_actor(), agent_id)}


@blp.post("/agents/<string:agent_id>/rotate-key")
@_idempotent(
    rebuild=service.rotation_of_entry, on_replay=lambda entry_id: service.record_rotation_replay(_actor(), entry_id)
)
@blp.arguments(schemas.RotationBody)
@blp.response(200, schemas.RotatedKey)
def rotate_agent_key(body: dict[str, Any], agent_id: str, claim: Claim) -> AgentKeyRotation:
    """Give an agent a new key; older ones work until the grace period ends. Limits and wallets are unchanged."""
    grace = timedelta(seconds=body["grace_seconds"])
    return service.rotate_key(_actor(), agent_id, grace=grace, claim=claim)


@blp.put("/agents/<string:agent_id>/controls")
@blp.arguments(schemas.PlatformControlsBody)
@blp.response(200, schemas.AgentControls)
def set_agent_controls(body: dict[str, Any], agent_id: str) -> dict[str, Any]:
    """Set the controls of all wallets of an agent, locked or not; omitted fields keep their values."""
    assert_any_field(body, schemas.PlatformControlsBody)
    wallets = fleet.set_agent_controls(_actor(), agent_id, ControlsChange(**body))
    return {"agent_id": agent_id, "wallets": wallets, "updated": True}


@blp.put("/controls")
@blp.arguments(schemas.FleetBody)
@blp.response(200, schemas.FleetResult)
def set_fleet_controls(body: dict[str, Any]) -> FleetControlsResult:
    """Set the controls of many agents, each entirely or not at all; at most 10 000 in a call. Safe to repeat."""
    agent_ids, after = body.pop("agent_ids"), body.pop("after")
    body.pop("all")
    assert_any_field(body, schemas.PlatformControlsBody)
    return fleet.set_agents_controls(_actor(), agent_ids, ControlsChange(**body), after=after)


@blp.post("/agents/<string:agent_id>/credits")
@_idempotent(rebuild=service.grant_of_entry)
@blp.arguments(schemas.GrantBody)
@blp.response(200, schemas.CreditGrantShape)
def grant_credits(body: dict[str, Any], agent_id: str, claim: Claim) -> dict[str, Any]:
    """Grant credits to an agent, outside every grant budget. Without Idempotency-Key a repeated call grants again."""
    return service.grant(_actor(), agent_id, body["credits_nanos"], claim=claim)


@blp.post("/agents/<string:agent_id>/freeze")
@blp.arguments(schemas.FreezeBody)
@blp.response(200, schemas.AgentFreezeShape)
def freeze_agent(body: dict[str, Any], agent_id: str) -> AgentSnapshot:
    """Freeze an agent with all its wallets, including new ones. Pending transactions are completed.

    Its key still makes gateway and proxy calls on credits, unless `block_keys` is true.
    """
    return service.set_frozen(_actor(), agent_id, frozen=True, block_keys=body["block_keys"])


@blp.post("/agents/<string:agent_id>/unfreeze")
@blp.response(200, schemas.AgentFreezeShape)
def unfreeze_agent(agent_id: str) -> AgentSnapshot:
    """Unfreeze an agent."""
    return service.set_frozen(_actor(), agent_id, frozen=False)


@blp.delete("/agents/<string:agent_id>/claim-code")
@blp.response(200, schemas.RevokedClaimCode)
def revoke_claim_code(agent_id: str) -> dict[str, Any]:
    """Revoke an agent's open claim code; the agent can request another one."""
    return {"agent_id": agent_id, "revoked": service.revoke_claim_code(_actor(), agent_id)}


@blp.post("/agents/<string:agent_id>/owner-recovery")
@blp.response(200, schemas.OwnerRecovery)
def recover_owner(agent_id: str) -> dict[str, Any]:
    """Begin a recovery for an owner who has lost everything; after the waiting time, get its code."""
    codes, start, end = claims.create_owner_codes(_actor(), agent_id, CodeKind.RECOVERY)
    return {"agent_id": agent_id, "usable_from": start, "expires_at": end, "code": next(iter(codes), None)}


@blp.get("/master-keys")
@blp.response(200, schemas.MasterKeyList)
def list_master_keys() -> dict[str, Any]:
    """List master keys: to an admin, active ones in full. The access is recorded in the audit log."""
    found = keys.list_master_keys(_actor())
    return {"master_keys": found, "count": len(found)}


@blp.post("/master-keys")
@_idempotent(
    rebuild=keys.get_master_key,
    on_replay=lambda key_id: trail.record_alone(
        _actor(), AuditAction.MASTER_KEYS_SHOWN, key_ids=[key_id], repeated=True
    ),
)
@blp.arguments(schemas.MasterKeyBody)
@blp.response(201, schemas.NewMasterKey)
def create_master_key(body: dict[str, Any], claim: Claim) -> MasterKeyView:
    """Create a master key."""
    return keys.create_master_key(_actor(), claim=claim, **body)


@blp.delete("/master-keys/<string:key_id>")
@blp.response(200, schemas.RevokedMasterKey)
@blp.raises(SelfRevoke)
def revoke_master_key(key_id: str) -> dict[str, Any]:
    """Revoke another master key, immediately, and disable the webhooks that it created.

    The key in use cannot be revoked, so that one always remains.
    """
    revoked_id, webhook_ids = keys.revoke_master_key(_actor(), key_id)
    shown = {"disabled_webhooks": webhook_ids} if webhook_ids else {}
    return {"revoked": True, "id": revoked_id, **shown}


@blp.get("/keys")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.GatewayKeys)
def list_gateway_keys(query: dict[str, Any]) -> Page[dict[str, Any]]:
    """List gateway-only keys, truncated, oldest first."""
    return keys.list_gateway_keys(_actor(), query["page"])


@blp.delete("/keys/<string:key_id>")
@blp.response(200, schemas.RevokedKey)
def revoke_gateway_key(key_id: str) -> dict[str, Any]:
    """Revoke a gateway-only key, immediately."""
    return {"revoked": True, "id": keys.revoke_gateway_key(_actor(), key_id)}


@blp.get("/audit")
@blp.arguments(schemas.AuditQuery, location="query")
@blp.response(200, schemas.AuditPage)
def list_audit_entries(query: dict[str, Any]) -> dict[str, Any]:
    """Read the audit log, the newest entry first."""
    with read_only_unit() as session:
        page, head = trail.list_entries(session, **query)
    return {"entries": page.items, "pagination": page, "head": head}


@blp.get("/approvals")
@blp.arguments(approval_schemas.AllApprovalsQuery, location="query")
@blp.response(200, approval_schemas.ApprovalPage)
def list_all_approvals(query: dict[str, Any]) -> Page[Approval]:
    """List the approvals of all agents, newest first. Only their owners decide."""
    return approvals.list_of(**query)


@blp.get("/audit/verification")
@blp.response(200, lookup_schemas.AuditVerification)
def verify_audit_log() -> dict[str, Any]:
    """Verify that none of the newest 10 000 entries of the audit log was changed or removed."""
    return verification.verify()


@blp.get("/stuck-movements")
@blp.arguments(PageQuery, location="query")
@blp.response(200, lookup_schemas.StuckMovements)
def list_stuck_movements(query: dict[str, Any]) -> Page[dict[str, Any]]:
    """List movements that have been pending for more than an hour, oldest first, with the command to run."""
    return service.list_stuck(query["page"])


@blp.get("/purchases")
@blp.arguments(lookup_schemas.AllPurchasesQuery, location="query")
@blp.response(200, lookup_schemas.SoldPurchases)
def list_all_purchases(query: dict[str, Any]) -> dict[str, Any]:
    """List the purchases in web shops of all agents and keys, newest first."""
    page = shopping.list_of(**query)
    return {"items": [shown(purchase) for purchase in page.items], "pagination": page}


@blp.get("/purchases/<string:purchase_id>")
@blp.response(200, lookup_schemas.SoldPurchase)
def get_any_purchase(purchase_id: str) -> dict[str, Any]:
    """Read a purchase of any agent or key, with its steps. Only its buyer can fetch the screenshots."""
    return shown(shopping.view(identifiers.require_id(purchase_id, NotFound("No purchase has this id."))))
