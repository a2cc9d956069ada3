"""Administration of API keys: show, rotate, revoke."""

from datetime import datetime, timedelta

from sqlalchemy import case, or_, select, update
from sqlalchemy.orm import Session

from app.authenticated import changing, withdraw
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.db.tables import page_of
from app.errors import NotFound
from app.identity import service
from app.identity.models import ApiKey
from app.identity.principal import KeyKind
from app.identity.service import MintedKey

_VISIBLE_PREFIX_CHARS = 7
_VISIBLE_SUFFIX_CHARS = 4


def mask_key(key: str) -> str:
    """Mask a key except its first seven and last four characters."""
    return f"{key[:_VISIBLE_PREFIX_CHARS]}…{key[-_VISIBLE_SUFFIX_CHARS:]}"


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
