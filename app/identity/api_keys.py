"""Administration of API keys: show, rotate, revoke; and further keys of an agent, each with limits.

A further key spends from the agent's account, and only on models and services.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, exists, insert, or_, select, update
from sqlalchemy.orm import Session

from app.authenticated import change, changing, seal_of, withdraw
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.db.tables import count, page_of
from app.errors import LimitReached, NotFound
from app.identity import budget_counters, service
from app.identity.models import ApiKey, BudgetMember, KeyLimit
from app.identity.principal import BudgetPeriod, KeyKind
from app.identity.service import MintedKey


def mask_key(key: str) -> str:
    """Mask a key except its first seven and last four characters."""
    return f"{key[:7]}…{key[-4:]}"


def rotate_api_key(session: Session, agent_id: str, key: MintedKey, *, now: datetime, grace: timedelta) -> list[str]:
    """Give a locked agent a new key; older ones are valid until the grace period ends. Return their ids.

    A key that expires earlier still does: a second rotation without grace revokes all of them immediately, with the
    further keys, which somebody else may have made.
    """
    until = now + grace
    is_valid = ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
    previous = update(ApiKey).where(ApiKey.agent_id == agent_id, *is_valid)
    if grace:
        is_valid_longer = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > until)
        previous = previous.values(expires_at=case((is_valid_longer, until), else_=ApiKey.expires_at))
    else:
        previous = previous.values(revoked_at=now)
        further = ApiKey.account_id == agent_id, ApiKey.agent_id.is_(None), ApiKey.revoked_at.is_(None)
        withdraw(session, ApiKey, *further, revoked_at=now)
    with changing(session, ApiKey, ApiKey.agent_id == agent_id, reduces_power=True):
        previous_key_ids = session.scalars(previous.returning(ApiKey.id)).all()
    service.add_key(session, key, account_id=agent_id, agent_id=agent_id)
    return sorted(previous_key_ids)


def reveal_key(session: Session, key_id: str) -> str:
    """Open the key of a row, even if it was revoked since; for replays."""
    return service.open_api_key(session, session.scalars(select(ApiKey).where(ApiKey.id == key_id)).one())


def list_gateway_keys(session: Session, page: PageRequest) -> Page[tuple[ApiKey, str]]:
    """Return a page of gateway-only keys, oldest first, each with its masked text."""
    found = page_of(session, ApiKey, page, ApiKey.kind == KeyKind.GATEWAY.value)
    return Page([(row, mask_key(service.open_api_key(session, row))) for row in found.items], found.total, page)


def revoke_gateway_key(session: Session, key_id: str) -> bool:
    """Revoke a gateway-only key; return whether this call did so. Raises: NotFound."""
    is_key = (ApiKey.id == key_id, ApiKey.kind == KeyKind.GATEWAY.value)
    if withdraw(session, ApiKey, *is_key, ApiKey.revoked_at.is_(None), revoked_at=clock.now()):
        return True
    if session.scalar(select(ApiKey.id).where(*is_key)) is None:
        raise NotFound("There is no such gateway-only key.")
    return False


MAX_KEYS = 200
_SEAL = seal_of(KeyLimit)


@dataclass(frozen=True, slots=True)
class LimitedKey:
    """A key with limits, masked. `used_nanos` is what it has held and spent since its budget last began."""

    id: str
    key: str = field(repr=False)
    email: str | None
    name: str | None
    tags: Sequence[str]
    limit_nanos: int | None
    period: BudgetPeriod
    used_nanos: int
    resets_at: datetime | None
    models: Sequence[str]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    expires_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime

    @property
    def remaining_nanos(self) -> int | None:
        return None if self.limit_nanos is None else max(0, self.limit_nanos - self.used_nanos)


def add_limited(
    session: Session, agent_id: str, key: MintedKey, *, email: str | None, expires_at: datetime | None = None,
    period: BudgetPeriod = BudgetPeriod.TOTAL, **limits: Any,
) -> None:  # fmt: skip
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


def list_limited(session: Session, agent_id: str, page: PageRequest, *, with_revoked: bool = True) -> Page[LimitedKey]:
    """Return a page of an agent's keys with limits, oldest first."""
    conditions = [] if with_revoked else [exists().where(ApiKey.id == KeyLimit.id, ApiKey.revoked_at.is_(None))]
    found = page_of(session, KeyLimit, page, KeyLimit.account_id == agent_id, *conditions)
    ids = [row.id for row in found.items]
    keys = {row.id: row for row in session.scalars(select(ApiKey).where(ApiKey.id.in_(ids)))}
    used = budget_counters.used(session, ids)
    return Page([_view(session, row, keys[row.id], used[row.id]) for row in found.items], found.total, found.request)


def get_limited(session: Session, agent_id: str | None, key_id: str) -> LimitedKey:
    """Return one of an agent's keys with limits, or of all. Raises: NotFound."""
    row = session.get(KeyLimit, key_id, populate_existing=True)
    if row is None or agent_id not in (None, row.account_id):
        raise NotFound("There is no such key with limits.")
    used = budget_counters.used(session, [key_id])
    return _view(session, row, session.get_one(ApiKey, key_id, populate_existing=True), used[key_id])


def change_limited(session: Session, agent_id: str, key_id: str, changes: Mapping[str, Any]) -> None:
    """Change the limits of a key. Raises: NotFound."""
    limits = {name: value for name, value in changes.items() if name != "expires_at"}
    get_limited(session, agent_id, key_id)
    if limits:
        change(session, KeyLimit, KeyLimit.id == key_id, **limits)
    if "limit_nanos" in limits:
        budget_counters.change(session, key_id, limits["limit_nanos"])
    if "expires_at" in changes:
        change(session, ApiKey, ApiKey.id == key_id, expires_at=changes["expires_at"])


def revoke_limited(session: Session, agent_id: str, key_id: str) -> bool:
    """Revoke a key; return whether this call did so. Raises: NotFound."""
    get_limited(session, agent_id, key_id)
    return bool(withdraw(session, ApiKey, ApiKey.id == key_id, ApiKey.revoked_at.is_(None), revoked_at=clock.now()))


def tags_by_key(session: Session, agent_id: str | None) -> dict[str, Sequence[str]]:
    """Return the tags of the keys that have any, of one agent or all, by their ids."""
    of_agent = [] if agent_id is None else [KeyLimit.account_id == agent_id]
    return {key: tags for key, tags in session.execute(select(KeyLimit.id, KeyLimit.tags).where(*of_agent)) if tags}


def _view(session: Session, row: KeyLimit, key: ApiKey, used_nanos: int) -> LimitedKey:
    _SEAL.verify(session, row)
    return LimitedKey(
        row.id, mask_key(service.open_api_key(session, key)), key.email, row.name, row.tags, row.limit_nanos,
        BudgetPeriod(row.period), used_nanos, budget_counters.resets_at(row.period, clock.now()), row.models,
        row.requests_per_minute, row.tokens_per_minute, key.expires_at, key.revoked_at, row.created_at,
    )  # fmt: skip
