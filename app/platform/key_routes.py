"""`/v1/platform/master-keys`, `/keys` and `/audit`: keys that are no agent's, and who did what."""

from __future__ import annotations

from typing import Any

from app.core import identifiers
from app.core.pagination import Page
from app.core.unit_of_work import reading
from app.errors import IdempotencyConflict, InvalidInput, NotFound, SelfRevoke, Unauthorized
from app.identity.master_keys import MasterKeyView
from app.platform import keys, schemas, trail
from app.platform.actors import of_request
from app.platform.keys import GatewayKey
from app.platform.routes import REPEATED, acting_key, blp
from app.web import idempotency
from app.web.idempotency import idempotent


def _note_master_key(key_id: str) -> None:
    keys.note_repeated_master_key(of_request(), key_id)


def _rebuild_master_key(key_id: str) -> tuple[int, Any]:
    return 201, schemas.NewMasterKey().dump(keys.created_master_key(key_id))


@blp.get("/master-keys")
@blp.response(200, schemas.MasterKeys)
@blp.raises(Unauthorized)
def list_master_keys() -> dict[str, Any]:
    """List master keys: active ones whole, revoked ones truncated; that they were shown is noted."""
    found = keys.show_master_keys(of_request())
    return {"master_keys": found, "count": len(found)}


@blp.post("/master-keys")
@idempotent(owner=acting_key, rebuild=_rebuild_master_key, repeated=_note_master_key)
@blp.arguments(schemas.MasterKeyBody)
@blp.response(201, schemas.NewMasterKey)
@blp.raises(Unauthorized, IdempotencyConflict)
@blp.header(idempotency.HEADER, REPEATED)
def create_master_key(body: dict[str, Any]) -> MasterKeyView:
    """Make a further master key."""
    return keys.create_master_key(of_request(), name=body["name"], owner_email=body["owner_email"])


@blp.delete("/master-keys/<string:key_id>")
@blp.response(200, schemas.RevokedKey)
@blp.raises(Unauthorized, NotFound, SelfRevoke)
def revoke_master_key(key_id: str) -> dict[str, Any]:
    """Revoke another master key, at once; never the one in use, so that one is always left."""
    return {"revoked": True, "id": keys.revoke_master_key(of_request(), key_id)}


@blp.get("/keys")
@blp.arguments(schemas.GatewayKeyQuery, location="query")
@blp.response(200, schemas.GatewayKeys)
@blp.raises(Unauthorized)
def list_gateway_keys(query: dict[str, Any]) -> Page[GatewayKey]:
    """List gateway-only keys, truncated, the oldest first."""
    return keys.show_gateway_keys(of_request(), query["page"])


@blp.delete("/keys/<string:key_id>")
@blp.response(200, schemas.RevokedKey)
@blp.raises(Unauthorized, NotFound)
def revoke_gateway_key(key_id: str) -> dict[str, Any]:
    """Revoke a gateway-only key, at once."""
    return {"revoked": True, "id": keys.revoke_gateway_key(of_request(), key_id)}


@blp.get("/audit")
@blp.arguments(schemas.AuditQuery, location="query")
@blp.response(200, schemas.AuditPage)
@blp.raises(Unauthorized)
def list_audit_entries(query: dict[str, Any]) -> dict[str, Any]:
    """Read the audit trail, the newest entry first."""
    subject_id = query["subject_id"]
    if subject_id is not None and identifiers.parse_id(subject_id) is None:
        raise InvalidInput.field("subject_id", "must be a UUID")
    with reading():
        page, head = trail.page_of(query["page"], action=query["action"], subject_id=subject_id)
    return {"entries": page.items, "pagination": page, "head": head}
