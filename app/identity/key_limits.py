"""Further keys of an agent, each with limits: they spend from the agent's account, and only on models and services."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import exists, insert, select
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of, withdraw
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.db.tables import count, page_of
from app.errors import LimitReached, NotFound
from app.identity import budget_counters, service
from app.identity.api_keys import mask_key
from app.identity.models import ApiKey, BudgetMember, KeyLimit
from app.identity.principal import BudgetPeriod, KeyKind
from app.identity.service import MintedKey

MAX_KEYS = 200
_SEAL = seal_of(KeyLimit)


def add(
    session: Session,
    agent_id: str,
    key: MintedKey,
    *,
    email: str | None,
    period: BudgetPeriod = BudgetPeriod.TOTAL,
    expires_at: datetime | None = None,
    **limits: Any,
) -> None:
    """Add a key to a locked agent; `limits` are columns of `key_limits`. Raises: LimitReached."""
    of_agent = ApiKey.account_id == agent_id, ApiKey.kind == KeyKind.GATEWAY.value, ApiKey.id != agent_id
    if count(session, ApiKey, *of_agent, ApiKey.revoked_at.is_(None)) >= MAX_KEYS:
        raise LimitReached(f"An agent may have at most {MAX_KEYS} keys with limits; revoke one first.")
    found_by = {"digest": service.digest_of_limited(key.key), "expires_at": expires_at}
    created_at = service.add_key(session, key, account_id=agent_id, email=email, **found_by)
    values = {"tags": [], "models": [], "period": period.value, **limits}
    session.add(KeyLimit(id=key.id, account_id=agent_id, created_at=created_at, **values))
    session.flush()
    budget_counters.create(session, key.id, limits.get("limit_nanos"), period.value)
    session.execute(insert(BudgetMember).values(member_id=key.id, budget_id=key.id))


def list_keys(session: Session, agent_id: str, page: PageRequest, *, with_revoked: bool = True) -> Page[KeyLimit]:
    """Return a page of an agent's keys with limits, oldest first."""
    conditions = [] if with_revoked else [exists().where(ApiKey.id == KeyLimit.id, ApiKey.revoked_at.is_(None))]
    found = page_of(session, KeyLimit, page, KeyLimit.account_id == agent_id, *conditions)
    ids = [row.id for row in found.items]
    keys = {row.id: row for row in session.scalars(select(ApiKey).where(ApiKey.id.in_(ids)))}
    used = budget_counters.used(session, ids)
    return Page([_view(session, row, keys[row.id], used[row.id]) for row in found.items], found.total, found.request)


def get_key(session: Session, agent_id: str | None, key_id: str) -> KeyLimit:
    """Return one of an agent's keys with limits, or of all. Raises: NotFound."""
    row = session.get(KeyLimit, key_id, populate_existing=True)
    if row is None or agent_id not in (None, row.account_id):
        raise NotFound("There is no such key with limits.")
    used = budget_counters.used(session, [key_id])
    return _view(session, row, session.get_one(ApiKey, key_id, populate_existing=True), used[key_id])


def change_key(session: Session, agent_id: str, key_id: str, changes: Mapping[str, Any]) -> None:
    """Change the limits of a key. Raises: NotFound."""
    limits = {name: value for name, value in changes.items() if name != "expires_at"}
    get_key(session, agent_id, key_id)
    if limits:
        change(session, KeyLimit, KeyLimit.id == key_id, **limits)
    if "limit_nanos" in limits:
        budget_counters.change(session, key_id, limits["limit_nanos"])
    if "expires_at" in changes:
        change(session, ApiKey, ApiKey.id == key_id, expires_at=changes["expires_at"])


def revoke(session: Session, agent_id: str, key_id: str) -> bool:
    """Revoke a key; return whether this call did so. Raises: NotFound."""
    get_key(session, agent_id, key_id)
    return bool(withdraw(session, ApiKey, ApiKey.id == key_id, ApiKey.revoked_at.is_(None), revoked_at=clock.now()))


def tags_by_key(session: Session, agent_id: str | None) -> dict[str, Sequence[str]]:
    """Return the tags of the keys that have any, of one agent or all, by their ids."""
    of_agent = [] if agent_id is None else [KeyLimit.account_id == agent_id]
    return {key: tags for key, tags in session.execute(select(KeyLimit.id, KeyLimit.tags).where(*of_agent)) if tags}


def _view(session: Session, row: KeyLimit, key: ApiKey, used_nanos: int) -> KeyLimit:
    _SEAL.verify(session, row)
    row.key, row.email = mask_key(service.open_api_key(session, key)), key.email
    row.expires_at, row.revoked_at = key.expires_at, key.revoked_at
    row.used_nanos, row.resets_at = used_nanos, budget_counters.resets_at(row.period, clock.now())
    return row
