"""Further keys of an agent, each with limits: they spend from the agent's account, and only on models and services.

What their calls hold and cost is counted in the same unit, while the account is locked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, exists, or_, select, update
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of, withdraw
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.db.prepared import PreparedRead
from app.db.tables import count, page_of, table_of
from app.errors import LimitReached, NotFound
from app.identity import budget_windows, service
from app.identity.api_keys import mask_key
from app.identity.budget_windows import resets_at, start_of, used_in_window
from app.identity.models import ApiKey, KeyLimit
from app.identity.principal import BudgetPeriod, KeyKind
from app.identity.service import MintedKey

MAX_KEYS = 200
_IS_ACTIVE = exists().where(ApiKey.id == KeyLimit.id, ApiKey.revoked_at.is_(None))
_TABLE, _SEAL = table_of(KeyLimit), seal_of(KeyLimit)
_USED = PreparedRead(
    select(*(_TABLE.c[name] for name in ("id", "period", "limit_nanos", "used_nanos", "window_start"))).where(
        _TABLE.c.id == bindparam("key_id")
    )
)


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
    now = clock.now()
    row = service.build_api_key(key, KeyKind.GATEWAY, account_id=agent_id, email=email, at=now)
    row.digest, row.expires_at = service.digest_of_limited(key.key), expires_at
    session.add(row)
    session.flush()
    values = {"tags": [], "models": [], "period": period.value, "window_start": start_of(period, now) or now, **limits}
    session.add(KeyLimit(id=key.id, account_id=agent_id, created_at=now, **values))
    session.flush()


def list_keys(session: Session, agent_id: str, page: PageRequest, *, with_revoked: bool = True) -> Page[LimitedKey]:
    """Return a page of an agent's keys with limits, oldest first."""
    conditions = [] if with_revoked else [_IS_ACTIVE]
    found = page_of(session, KeyLimit, page, KeyLimit.account_id == agent_id, *conditions)
    ids = [row.id for row in found.items]
    keys = {row.id: row for row in session.scalars(select(ApiKey).where(ApiKey.id.in_(ids)))}
    return Page([_view(session, row, keys[row.id]) for row in found.items], found.total, found.request)


def get_key(session: Session, agent_id: str | None, key_id: str) -> LimitedKey:
    """Return one of an agent's keys with limits, or of all. Raises: NotFound."""
    row = session.get(KeyLimit, key_id, populate_existing=True)
    if row is None or agent_id not in (None, row.account_id):
        raise NotFound("There is no such key with limits.")
    return _view(session, row, session.get_one(ApiKey, key_id, populate_existing=True))


def change_key(session: Session, agent_id: str, key_id: str, changes: Mapping[str, Any]) -> None:
    """Change the limits of a key. Raises: NotFound."""
    limits = {name: value for name, value in changes.items() if name != "expires_at"}
    if get_key(session, agent_id, key_id).used_nanos and "limit_nanos" in limits:
        limits["announced_percent"] = 0
    if limits:
        change(session, KeyLimit, KeyLimit.id == key_id, **limits)
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


def counted(session: Session) -> Sequence[Row[str, str, int, datetime]]:
    """Return id, account, and what is counted since an instant of each key with limits. For audits."""
    columns = (KeyLimit.id, KeyLimit.account_id, KeyLimit.used_nanos, KeyLimit.window_start)
    return session.execute(select(*columns).where(_IS_ACTIVE)).all()


def due_for_announcement(session: Session, *, limit: int = 500) -> Sequence[str]:
    """Return keys whose budget may have reached another of `PERCENTAGES` than was announced."""
    is_due = KeyLimit.limit_nanos > 0, KeyLimit.used_nanos > 0, _IS_ACTIVE, budget_windows.may_have_reached(KeyLimit)
    query = select(KeyLimit.id).where(*is_due)
    return session.scalars(query.order_by(KeyLimit.id).limit(limit)).all()


def mark_announced(session: Session, key_id: str) -> tuple[str, LimitedKey, int] | None:
    """Store the highest percentage that a budget has reached, and return its agent, its key and that; None if known."""
    row = session.get(KeyLimit, key_id, with_for_update=True)
    if row is None or (reached := budget_windows.mark_reached(row)) is None:
        return None
    key = _view(session, row, session.get_one(ApiKey, key_id))
    # In the window in which it was reached, which may just have ended.
    return row.account_id, replace(key, used_nanos=row.used_nanos), reached


class KeyBudget(NamedTuple):
    """What is left of a budget, None for a key without a limit; what was used, and when it begins anew, if it does."""

    left_nanos: int | None
    used_nanos: int
    resets_at: datetime | None


def budget_of(session: Session, key_id: str) -> KeyBudget:
    """Return the budget of a key now; it is exact while the account is locked."""
    row, now = _USED.one(session, {"key_id": key_id}), clock.now()
    used_nanos = used_in_window(row, now)
    left_nanos = None if row.limit_nanos is None else max(0, row.limit_nanos - used_nanos)
    return KeyBudget(left_nanos, used_nanos, resets_at(row.period, now))


def take(session: Session, key_id: str, nanos: int) -> None:
    """Count what a call holds or costs against the budget of a key whose account is locked."""
    budget_windows.add(session, KeyLimit, _USED.one(session, {"key_id": key_id}), nanos, clock.now())


def correct(session: Session, key_id: str, nanos: int, *, held_at: datetime) -> None:
    """Add a difference from what was taken at an instant, unless the budget has begun anew since."""
    if nanos:
        is_same_window = or_(KeyLimit.period == "total", KeyLimit.window_start <= held_at)
        changed = update(KeyLimit).where(KeyLimit.id == key_id, is_same_window)
        changed = changed.values(used_nanos=KeyLimit.used_nanos + nanos)
        session.execute(changed, execution_options={"synchronize_session": False})


def _view(session: Session, row: KeyLimit, key: ApiKey) -> LimitedKey:
    _SEAL.verify(session, row)
    now = clock.now()
    return LimitedKey(
        row.id, mask_key(service.open_api_key(session, key)), key.email, row.name, row.tags, row.limit_nanos,
        BudgetPeriod(row.period), used_in_window(row, now), resets_at(row.period, now), row.models,
        row.requests_per_minute, row.tokens_per_minute, key.expires_at, key.revoked_at, row.created_at,
    )  # fmt: skip
