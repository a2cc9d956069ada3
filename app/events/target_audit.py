"""Acts on targets, in the audit log."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.events.models import EventTarget

_OF_OWNERS = {
    AuditAction.WEBHOOK_CREATED: AuditAction.NOTICE_ADDED,
    AuditAction.WEBHOOK_DELETED: AuditAction.NOTICE_REMOVED,
}


def record(session: Session, actor: Actor | None, action: AuditAction, row: EventTarget, **before: Any) -> None:
    """Record an act of an actor, last in its unit; one on a target of an owner has the agent as its subject."""
    if actor is None:
        return
    is_owners = row.audience == "owner"
    act = AuditEvent(
        _OF_OWNERS.get(action, action) if is_owners else action,
        row.agent_id if is_owners else row.id,
        after=None if action is AuditAction.WEBHOOK_DELETED else described(row),
        **before,
    )
    trail.record(session, actor, act)


def described(row: EventTarget) -> dict[str, Any]:
    """Return what the audit log keeps of a target: of its address what tells it from others, and no path or secret."""
    scheme, _, rest = row.url.partition(":")
    local, at, domain = rest.partition("@")
    shown = f"{local[:1]}…{at}{domain}" if scheme == "mailto" else row.url[: row.url.find("/", len(scheme) + 3)]
    values = {
        "id": row.id,
        "agent_id": row.agent_id,
        "kind": row.kind,
        "address": shown,
        "status": row.status,
    }
    return {**values, "types": list(row.types), "created_by": row.created_by}
