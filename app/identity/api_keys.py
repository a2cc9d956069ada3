"""API keys as an operator handles them: shown, rotated, revoked. All verbs run in the caller's unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import case, func, or_, select, update

from app.core import clock
from app.core.pagination import Page, PageRequest
from app.errors import NotFound
from app.extensions import db
from app.identity import service
from app.identity.caller import KeyKind
from app.identity.models import ApiKey
from app.identity.service import MintedKey

_SHOWN_FIRST = 7
_SHOWN_LAST = 4


@dataclass(frozen=True, slots=True)
class GatewayKeyView:
    """A gateway-only key as an operator sees it: never whole."""

    id: str
    key: str = field(repr=False)
    email: str | None
    created_at: datetime
    revoked_at: datetime | None

    @property
    def is_active(self) -> bool:
        """Tell whether it opens anything."""
        return self.revoked_at is None


@dataclass(frozen=True, slots=True)
class Rotation:
    """When an agent got its new key, and until when which older ones work at most."""

    at: datetime
    older_until: datetime
    older_ids: tuple[str, ...]


def truncated(key: str) -> str:
    """Return as much of a key as tells it from others: its first seven letters and its last four."""
    return f"{key[:_SHOWN_FIRST]}…{key[-_SHOWN_LAST:]}"


def keys_of(agent_ids: Sequence[str]) -> dict[str, str]:
    """Return the newest valid key of each agent that has one; one query. The answer must be `no-store`."""
    rows = db.session.execute(
        select(ApiKey.agent_id, ApiKey.id, ApiKey.sealed)
        .where(ApiKey.agent_id.in_(agent_ids), ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None))
        .order_by(ApiKey.created_at)
    )
    return {row.agent_id: service.open_sealed(row.sealed, ApiKey.__tablename__, row.id) for row in rows}


def rotate(agent_id: str, key: MintedKey, *, grace: timedelta) -> Rotation:
    """Give a locked agent a new key; older ones work until the grace is over, or not at all.

    A key that was to end earlier still does: a second rotation without grace ends all of them at once.
    """
    now = clock.now()
    until = now + grace
    older = update(ApiKey).where(
        ApiKey.agent_id == agent_id,
        ApiKey.revoked_at.is_(None),
        or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now),
    )
    if grace:
        sooner = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > until)
        older = older.values(expires_at=case((sooner, until), else_=ApiKey.expires_at))
    else:
        older = older.values(revoked_at=now)
    older_ids = db.session.scalars(
        older.returning(ApiKey.id), execution_options={"synchronize_session": False}
    ).all()
    db.session.add(service.api_key_row(key, KeyKind.AGENT, agent_id=agent_id, account_id=agent_id, at=now))
    db.session.flush()
    return Rotation(now, until, tuple(sorted(older_ids)))


def key_of_row(key_id: str) -> str:
    """Open the key of a row, whatever became of it since; for repeated answers."""
    sealed = db.session.scalars(select(ApiKey.sealed).where(ApiKey.id == key_id)).one()
    return service.open_sealed(sealed, ApiKey.__tablename__, key_id)


def page_of_gateway_keys(page: PageRequest) -> Page[GatewayKeyView]:
    """Return a page of gateway-only keys, the oldest first. Works in a reading unit."""
    of_kind = ApiKey.kind == KeyKind.GATEWAY.value
    total = db.session.scalar(select(func.count()).select_from(ApiKey).where(of_kind)) or 0
    ids = (
        select(ApiKey.id)
        .where(of_kind)
        .order_by(ApiKey.created_at, ApiKey.id)
        .limit(page.limit)
        .offset(page.offset)
        .subquery()
    )
    rows = db.session.scalars(
        select(ApiKey).join(ids, ids.c.id == ApiKey.id).order_by(ApiKey.created_at, ApiKey.id)
    )
    return Page([_view(row) for row in rows], total, page)


def revoke_gateway_key(key_id: str) -> bool:
    """Revoke a gateway-only key; tell whether this call did it. Raises: NotFound."""
    this = (ApiKey.id == key_id, ApiKey.kind == KeyKind.GATEWAY.value)
    revoked = db.session.execute(
        update(ApiKey)
        .where(*this, ApiKey.revoked_at.is_(None))
        .values(revoked_at=clock.now())
        .returning(ApiKey.id)
        .execution_options(synchronize_session=False)
    )
    if revoked.first() is not None:
        return True
    if db.session.scalar(select(ApiKey.id).where(*this)) is None:
        raise NotFound("There is no such gateway-only key.")
    return False


def _view(row: ApiKey) -> GatewayKeyView:
    key = service.open_sealed(row.sealed, ApiKey.__tablename__, row.id)
    return GatewayKeyView(row.id, truncated(key), row.email, row.created_at, row.revoked_at)
