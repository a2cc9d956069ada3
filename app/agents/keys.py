"""Further keys of an agent: made, changed and revoked by the agent, its owner or an operator."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import identifiers
from app.core.pagination import Page, PageRequest
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import NotFound
from app.idempotency.service import Claim
from app.identity import api_keys, budgets
from app.identity import service as identity
from app.identity.api_keys import LimitedKey
from app.identity.principal import KeyKind, Principal
from app.identity.service import KeyMemory
from app.state import app_state


def create(
    actor: Actor, agent_id: str, body: Mapping[str, Any], *, claim: Claim, caller: Principal | None = None
) -> tuple[LimitedKey, str]:
    """Make a key with limits, for the agent's own key `caller` or an operator; return it with its text.

    Raises: LimitReached, NotFound; RateLimited and Unauthorized for a `caller`.
    """
    _count("30 per minute;200 per day", "new key", caller)
    # The audit log has the limits, and never the address.
    limits = {name: value for name, value in body.items() if name != "email"}
    with unit_of_work() as session:
        _lock(session, agent_id, caller)
        key = identity.mint_api_key(KeyKind.GATEWAY)
        follows_tags = budgets.lock_for_tags(session, agent_id)
        api_keys.add_limited(session, agent_id, key, email=body["email"], **limits)
        if follows_tags:
            budgets.assign_members(session)
        claim.bind(session, key.id)
        trail.record(session, actor, AuditEvent(AuditAction.KEY_ADDED, agent_id, after=_recorded(key.id, limits)))
        return api_keys.get_limited(session, agent_id, key.id), key.key


def reveal(agent_id: str | None, key_id: str) -> tuple[LimitedKey, str]:
    """Return a key, of an agent or any, with its text, for a response that was lost."""
    with read_only_unit() as session:
        return api_keys.get_limited(session, agent_id, key_id), api_keys.reveal_key(session, key_id)


def list_keys(agent_id: str, page: PageRequest, *, with_revoked: bool = True) -> Page[LimitedKey]:
    """Return a page of an agent's keys with limits, oldest first, masked."""
    with read_only_unit() as session:
        return api_keys.list_limited(session, agent_id, page, with_revoked=with_revoked)


def get(agent_id: str, key_id: str) -> LimitedKey:
    """Return a key with limits. Raises: NotFound."""
    with read_only_unit() as session:
        return api_keys.get_limited(session, agent_id, _id(key_id))


def change(
    actor: Actor, agent_id: str, key_id: str, changes: Mapping[str, Any], *, caller: Principal | None = None
) -> LimitedKey:
    """Change a key's limits, from the next call on, for the agent's own key `caller` or an operator.

    Raises: NotFound; RateLimited and Unauthorized for a `caller`.
    """
    _count("60 per minute", "changed key", caller)
    with unit_of_work() as session:
        _lock(session, agent_id, caller)
        key_id = _id(key_id)
        has_other_tags = "tags" in changes and changes["tags"] != api_keys.get_limited(session, agent_id, key_id).tags
        follows_tags = has_other_tags and budgets.lock_for_tags(session, agent_id)
        api_keys.change_limited(session, agent_id, key_id, changes)
        if follows_tags:
            budgets.assign_members(session)
        trail.record(session, actor, AuditEvent(AuditAction.KEY_CHANGED, agent_id, after=_recorded(key_id, changes)))
        after_commit(lambda: app_state().part(KeyMemory).forget(key_id))
        return api_keys.get_limited(session, agent_id, key_id)


def revoke(actor: Actor, agent_id: str, key_id: str) -> LimitedKey:
    """Revoke a key; again changes nothing. Raises: NotFound."""
    with unit_of_work() as session:
        identity.lock_agent(session, agent_id)
        if api_keys.revoke_limited(session, agent_id, _id(key_id)):
            act = AuditEvent(AuditAction.KEY_REVOKED, agent_id, after={"key_id": _id(key_id)})
            trail.record(session, actor, act)
        return api_keys.get_limited(session, agent_id, _id(key_id))


def _recorded(key_id: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the audit log has of a key's limits."""
    shown = {name: str(value) if isinstance(value, StrEnum | datetime) else value for name, value in limits.items()}
    return {"key_id": key_id, **shown}


def _count(limit: str, scope: str, caller: Principal | None) -> None:
    if caller is not None:
        app_state().rate_limiter.count(limit, scope, caller.account_id)


def _lock(session: Session, agent_id: str, caller: Principal | None) -> None:
    """Lock an agent, whose own key must still be valid: a rotation may have come while the body was read."""
    identity.lock_agent(session, agent_id)
    if caller is not None:
        identity.assert_valid_key(session, caller.key_id, agent_id)


def _id(text: str) -> str:
    return identifiers.require_id(text, NotFound("There is no such key with limits."))
