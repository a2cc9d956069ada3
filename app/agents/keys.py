"""Further keys of an agent: made, changed and revoked by the agent, announced when a budget is nearly used."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor, current_actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import RowChanged
from app.core import clock, identifiers
from app.core.money import usd_string
from app.core.pagination import Page, PageRequest
from app.db.leases import once_per_period
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import NotFound
from app.events import outbox
from app.events.outbox import EventType
from app.idempotency.service import Claim
from app.identity import api_keys, budgets, key_limits
from app.identity import service as identity
from app.identity.key_limits import LimitedKey
from app.identity.principal import KeyKind, Principal
from app.identity.service import KeyMemory
from app.state import app_state

_PERIOD, _LEASE = timedelta(minutes=1), timedelta(seconds=30)
_CREATIONS, _CHANGES = "30 per minute;200 per day", "60 per minute"


def create(caller: Principal, limits: Mapping[str, Any], *, email: str | None, claim: Claim) -> tuple[LimitedKey, str]:
    """Make a key with limits; return it with its text. Raises: LimitReached, RateLimited, Unauthorized."""
    app_state().rate_limiter.count(_CREATIONS, "new key", caller.account_id)
    with unit_of_work() as session:
        _lock(session, caller)
        return _add(session, current_actor(), caller.account_id, limits, email=email, claim=claim)


def create_for(
    actor: Actor, agent_id: str, limits: Mapping[str, Any], *, email: str | None, claim: Claim
) -> tuple[LimitedKey, str]:
    """Make a key with limits for an agent, as an operator. Raises: LimitReached, NotFound."""
    with unit_of_work() as session:
        identity.lock_agent(session, agent_id)
        return _add(session, actor, agent_id, limits, email=email, claim=claim)


def reveal(agent_id: str | None, key_id: str) -> tuple[LimitedKey, str]:
    """Return a key, of an agent or any, with its text, for a response that was lost."""
    with read_only_unit() as session:
        return key_limits.get_key(session, agent_id, key_id), api_keys.reveal_key(session, key_id)


def list_keys(agent_id: str, page: PageRequest, *, with_revoked: bool = True) -> Page[LimitedKey]:
    """Return a page of an agent's keys with limits, oldest first, masked."""
    with read_only_unit() as session:
        return key_limits.list_keys(session, agent_id, page, with_revoked=with_revoked)


def get(agent_id: str, key_id: str) -> LimitedKey:
    """Return a key with limits. Raises: NotFound."""
    with read_only_unit() as session:
        return key_limits.get_key(session, agent_id, _id(key_id))


def change(caller: Principal, key_id: str, changes: Mapping[str, Any]) -> LimitedKey:
    """Change a key's limits, from the next call on. Raises: NotFound, RateLimited, Unauthorized."""
    app_state().rate_limiter.count(_CHANGES, "changed key", caller.account_id)
    with unit_of_work() as session:
        _lock(session, caller)
        return _change(session, current_actor(), caller.account_id, key_id, changes)


def change_for(actor: Actor, agent_id: str, key_id: str, changes: Mapping[str, Any]) -> LimitedKey:
    """Change the limits of an agent's key, as an operator. Raises: NotFound."""
    with unit_of_work() as session:
        identity.lock_agent(session, agent_id)
        return _change(session, actor, agent_id, key_id, changes)


def revoke(actor: Actor, agent_id: str, key_id: str) -> LimitedKey:
    """Revoke a key; again changes nothing. Raises: NotFound."""
    with unit_of_work() as session:
        identity.lock_agent(session, agent_id)
        if key_limits.revoke(session, agent_id, _id(key_id)):
            act = AuditEvent(AuditAction.KEY_REVOKED, agent_id, after={"key_id": _id(key_id)})
            trail.record(session, actor, act)
        return key_limits.get_key(session, agent_id, _id(key_id))


def announce_budgets() -> None:
    """Record an event for each budget that reached 50, 80, 95 or 100 %, once per window; about once a minute."""
    with once_per_period(_PERIOD, "key_budgets", duration=_LEASE) as is_due:
        if not is_due:
            return
        with read_only_unit() as session:
            due = key_limits.due_for_announcement(session)
        for key_id in due:
            # A row that somebody else changed must not silence the others.
            with suppress(RowChanged), unit_of_work() as session:
                if (reached := key_limits.mark_announced(session, key_id)) is not None:
                    _announce(session, *reached)


def _add(
    session: Session, actor: Actor, agent_id: str, limits: Mapping[str, Any], *, email: str | None, claim: Claim
) -> tuple[LimitedKey, str]:
    key = identity.mint_api_key(KeyKind.GATEWAY)
    follows_tags = budgets.lock_for_tags(session, agent_id)
    key_limits.add(session, agent_id, key, email=email, **limits)
    if follows_tags:
        budgets.assign_members(session)
    claim.bind(session, key.id)
    trail.record(session, actor, AuditEvent(AuditAction.KEY_ADDED, agent_id, after=_recorded(key.id, limits)))
    return key_limits.get_key(session, agent_id, key.id), key.key


def _change(session: Session, actor: Actor, agent_id: str, key_id: str, changes: Mapping[str, Any]) -> LimitedKey:
    key_id = _id(key_id)
    has_other_tags = "tags" in changes and changes["tags"] != key_limits.get_key(session, agent_id, key_id).tags
    follows_tags = has_other_tags and budgets.lock_for_tags(session, agent_id)
    key_limits.change_key(session, agent_id, key_id, changes)
    if follows_tags:
        budgets.assign_members(session)
    trail.record(session, actor, AuditEvent(AuditAction.KEY_CHANGED, agent_id, after=_recorded(key_id, changes)))
    after_commit(lambda: app_state().part(KeyMemory).forget(key_id))
    return key_limits.get_key(session, agent_id, key_id)


def _recorded(key_id: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the audit log has of a key's limits."""
    shown = {name: str(value) if isinstance(value, StrEnum | datetime) else value for name, value in limits.items()}
    return {"key_id": key_id, **shown}


def _lock(session: Session, caller: Principal) -> None:
    """Lock the agent of a key that is still valid: a rotation may have come while the body was read."""
    identity.lock_agent(session, caller.account_id)
    identity.assert_valid_key(session, caller.key_id, caller.account_id)


def _announce(session: Session, agent_id: str, key: LimitedKey, percent: int) -> None:
    data = {
        "key_id": key.id, "key_name": key.name, "window": key.period.value, "percent": percent,
        "limit_usd": usd_string(key.limit_nanos or 0), "spent_usd": usd_string(key.used_nanos),
        "resets_at": key.resets_at and clock.isoformat(key.resets_at),
    }  # fmt: skip
    outbox.record(session, EventType.BUDGET_THRESHOLD_REACHED, agent_id=agent_id, object_id=key.id, data=data)


def _id(text: str) -> str:
    return identifiers.require_id(text, NotFound("There is no such key with limits."))
